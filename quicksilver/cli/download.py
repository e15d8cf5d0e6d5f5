"""Finds the files of a model for a command; a repository of the Hugging Face hub is pulled if it is not here yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from quicksilver.cli.console import errors
from quicksilver.errors import CheckpointRefused
from quicksilver.hub.resolve import ModelFiles, resolve
from quicksilver.hub.snapshots import HubName, Snapshot, fetch, look_up, parse_hub_name, pull_snapshot, pulled_files


def find(model: str) -> ModelFiles:
    """Like `resolve`, but downloads a hub repository that is not on this machine."""
    name = parse_hub_name(model)
    if name is not None and pulled_files(name) is None:
        pull_hub(name)
    return resolve(model)


def missing_tokenizer(files: ModelFiles) -> Path | None:
    """The tokenizer.json that a folder of weights lacks, without other files that replace it; a GGUF file contains its
    tokenizer."""
    from quicksilver.text.vocabulary import has_tokenizer

    is_missing = files.weights.is_dir() and not has_tokenizer(files.weights)
    return files.weights / "tokenizer.json" if is_missing else None


def find_with_tokenizer(model: str) -> ModelFiles:
    """Like `find`, but refuses a checkpoint that cannot be served, before a worker process is started for it."""
    files = find(model)
    if missing_tokenizer(files) is not None:
        raise CheckpointRefused(f"{files.weights} has no tokenizer.json; copy it from the published checkpoint")
    return files


def pull_hub(name: HubName) -> Path:
    """Pull a repository. Its config is checked first, so that an unsupported family costs no large download."""
    snapshot = look_up(name)
    check_family(snapshot)
    with progress_bar(f"pulling {name}") as report:
        return pull_snapshot(snapshot, report=report)


def check_family(snapshot: Snapshot) -> Path:
    """Fetch everything but the weights and refuse a config that is not supported. Returns the folder."""
    from quicksilver.model.config import ModelConfig
    from quicksilver.model.files.shards import checkpoint_name, read_json

    folder = fetch(snapshot, snapshot.small)
    ModelConfig.from_hf(read_json(folder / "config.json"), checkpoint_name(folder))
    return folder


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr; the function that it yields takes bytes done and bytes in total."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
