"""`quicksilver tune DATA.jsonl`: a fine-tuning job on this machine, with a progress bar and a plot of the loss.

The job, its files and the tuned model are stored where a server without accounts stores them, so `quicksilver serve`
offers the model afterwards. The same command continues a job that was interrupted.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.progress import BarColumn, Progress, TextColumn

from quicksilver.cli import options
from quicksilver.cli.console import errors, out
from quicksilver.cli.download import find
from quicksilver.cli.loss_plot import plot
from quicksilver.errors import InvalidRequest, QuicksilverError
from quicksilver.hub.resolve import default_home
from quicksilver.tuning.hyperparameters import BOUNDS, checked
from quicksilver.tuning.jobs import JobStore, TuningJob, new_job
from quicksilver.tuning.models import check_suffix
from quicksilver.tuning.settings import TrainerSettings

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore
    from quicksilver.training.service.job_data import Watch
    from quicksilver.training.service.lease import Signals
    from quicksilver.training.service.time_left import Tell

OWNER = ""
DIGEST = "tune_digest"


def _whole(name: str, text: str) -> Any:
    return typer.Option(min=int(BOUNDS[name].least), max=int(BOUNDS[name].most), help=text, show_default="auto")


def _number(name: str, text: str) -> Any:
    return typer.Option(min=BOUNDS[name].least, max=BOUNDS[name].most, help=text, show_default="auto")


def tune(
    data: Annotated[Path, typer.Argument(help="JSON lines to learn; see docs/guides/fine-tuning.md.")],
    model: options.Model = options.DEFAULT_MODEL,
    validation: Annotated[Path | None, typer.Option(help="JSON lines to measure the model with.")] = None,
    method: Annotated[str, typer.Option(help="supervised, dpo or kto.")] = "supervised",
    suffix: Annotated[str | None, typer.Option(help="Part of the name of the tuned model.")] = None,
    epochs: Annotated[int | None, _whole("n_epochs", "Passes over the data.")] = None,
    batch_size: Annotated[int | None, _whole("batch_size", "Examples of one step.")] = None,
    learning_rate_multiplier: Annotated[
        float | None, _number("learning_rate_multiplier", "Factor of the default learning rate.")
    ] = None,
    beta: Annotated[float | None, _number("beta", "Strength of a preference (dpo and kto).")] = None,
    rank: Annotated[int | None, _whole("rank", "Rank of the adapter.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="The same seed gives the same adapter.")] = 0,
    evals: Annotated[Path | None, typer.Option(help="Evaluation pack that the data may not overlap with.")] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="Also write the adapter here, as a PEFT zip.")] = None,
    device: options.Device = "auto",
    threads: options.Threads = 0,
) -> None:
    """Fine-tune a model on your own data; the same command continues an interrupted job."""
    files = find(model)
    check_suffix(suffix)
    given = {
        "n_epochs": epochs,
        "batch_size": batch_size,
        "learning_rate_multiplier": learning_rate_multiplier,
        "beta": beta,
        "rank": rank,
    }
    chosen = checked(method, {name: value for name, value in given.items() if value is not None})
    # Nothing else is served by this process, so all cores train.
    threads = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    settings = TrainerSettings(default_home(), {files.name: files}, device=device, threads=threads, evals=evals)
    contents = {"training_file": _read(data), "validation_file": _read(validation) if validation else None}
    described = {"type": method, method: {"hyperparameters": chosen}}
    finished = run_job(settings, described, contents, files.name, suffix=suffix, seed=seed)
    if out_file is not None:
        _write_archive(settings, finished, out_file)
    out.print(f"Serve: quicksilver serve --model {model}", highlight=False, soft_wrap=True, markup=False)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from None


def run_job(
    settings: TrainerSettings,
    method: Mapping[str, Any],
    contents: Mapping[str, bytes | None],
    model: str,
    *,
    suffix: str | None,
    seed: int,
) -> TuningJob:
    """Trains to the end and prints the result. Raises QuicksilverError if the job fails or is stopped."""
    from quicksilver.accounts.objects import open_local
    from quicksilver.training.service.lease import Signals
    from quicksilver.training.service.trainer import Trainer

    store, process, signals = open_local(settings.home / "objects.db"), uuid.uuid4().hex, Signals()
    jobs = JobStore(store)
    job = _open_job(jobs, process, method, contents, model, suffix, seed)
    _stop_on_interrupt(signals)
    losses, begun = list[float](), time.monotonic()
    with _progress() as tell:
        Trainer(jobs, settings, process, signals=signals, watch=_collect(losses), tell=tell).run(job)
    if losses:
        errors.print(f"training loss\n{plot(losses)}", markup=False, highlight=False)
    ended = jobs.get(OWNER, job.id)
    assert ended is not None
    if ended.status not in ("succeeded", "failed"):
        jobs.pause(OWNER, job.id)
        raise QuicksilverError(f"{job.id} was stopped; the same command continues it")
    if ended.status == "failed":
        raise InvalidRequest(_failure(store, ended))
    _print_result(ended, time.monotonic() - begun)
    return ended


def _open_job(
    jobs: JobStore,
    process: str,
    method: Mapping[str, Any],
    contents: Mapping[str, bytes | None],
    model: str,
    suffix: str | None,
    seed: int,
) -> TuningJob:
    """An interrupted job with the same data and options, or a new one."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items() if content is not None}
    essence = [model, suffix, seed, method, hashes]
    digest = hashlib.sha256(orjson.dumps(essence, option=orjson.OPT_SORT_KEYS)).hexdigest()
    if (
        found := jobs.take(OWNER, lambda job: (job.reply["metadata"] or {}).get(DIGEST) == digest, process)
    ) is not None:
        errors.print(f"continuing {found.id}")
        return found
    ids = {name: _upload(jobs.objects, name, content) for name, content in contents.items() if content is not None}
    reply = new_job(
        model,
        ids["training_file"],
        method,
        validation_file=ids.get("validation_file"),
        suffix=suffix,
        seed=seed,
        metadata={DIGEST: digest},
    )
    job = TuningJob(OWNER, reply)
    jobs.create(job, process)
    return job


def _upload(store: ObjectStore, name: str, content: bytes) -> str:
    from io import BytesIO

    from quicksilver.accounts.stored_files import describe, write_file

    reply = describe(f"{name}.jsonl", "fine-tune", len(content))
    write_file(store, OWNER, reply, BytesIO(content))
    return str(reply["id"])


def _stop_on_interrupt(signals: Signals) -> None:
    """The first Ctrl-C writes a checkpoint and stops; a second one ends the process."""

    def stop(number: int, frame: Any) -> None:
        signals.is_stopping.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)


def _collect(losses: list[float]) -> Watch:
    def watch(job: TuningJob, step: int, total: int, scalars: Mapping[str, float]) -> None:
        # Only the steps of training report an accuracy; those of a canvas refresh follow them.
        losses.extend([scalars["loss"]] if "accuracy" in scalars else [])

    return watch


@contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on a terminal, else one line per report."""
    begun = time.monotonic()
    with Progress(TextColumn("{task.description}"), BarColumn(), console=errors) as bar:
        task = bar.add_task(first := "reading the data and the model", total=None)
        if not errors.is_terminal:
            errors.print(first)

        def tell(text: str, seconds_left: float) -> None:
            elapsed, told = time.monotonic() - begun, f"{text}, about {_duration(seconds_left)} left"
            bar.update(task, completed=elapsed, total=elapsed + seconds_left, description=told)
            if not errors.is_terminal:
                errors.print(told, highlight=False)

        yield tell


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _failure(store: ObjectStore, job: TuningJob) -> str:
    """The reason, and the first faults of the data by line."""
    from quicksilver.tuning.jobs import EVENT

    events = [orjson.loads(each.body) for each in store.find(OWNER, EVENT, job.id, limit=100) or []]
    faults = [event["message"] for event in events if event["level"] == "error" and event["data"].get("code")]
    return "\n  ".join([job.reply["error"]["message"], *faults]) if len(faults) > 1 else job.reply["error"]["message"]


def _print_result(job: TuningJob, seconds: float) -> None:
    """At most five lines; the caller adds one."""
    facts, reply = job.reply["quicksilver"], job.reply
    names = {
        "valid_loss": "validation loss",
        "valid_mean_token_accuracy": "token accuracy",
        "tokens_per_round": "tokens per draft round",
    }
    shown = {
        key: f"{title}: {facts['before'].get(key):.3f} -> {facts['after'][key]:.3f}"
        for key, title in names.items()
        if key in facts["after"]
    }
    drafts = shown.pop("tokens_per_round", "")
    for line in filter(None, (", ".join(shown.values()), drafts)):
        out.print(line, highlight=False)
    out.print(f"{reply['trained_tokens']} tokens trained in {_duration(seconds)}", highlight=False)
    out.print(f"model: {reply['fine_tuned_model']}", highlight=False, soft_wrap=True, markup=False)
    out.print(f"adapter sha256: {facts['adapter_sha256']}", highlight=False, soft_wrap=True)


def _write_archive(settings: TrainerSettings, job: TuningJob, path: Path) -> None:
    from quicksilver.accounts.objects import open_local
    from quicksilver.accounts.stored_files import read_pieces

    store = open_local(settings.home / "objects.db")
    file_id = next(name for name in job.reply["result_files"] if name.endswith("-adapter"))
    path.write_bytes(b"".join(read_pieces(store, OWNER, file_id)))
