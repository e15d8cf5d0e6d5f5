"""Feedback on edits -> KTO -> tuned model: how many shown edits are accepted, before and after.

    python -m benchmarks.feedback_kto EDITS [--on validation] [--feedback 500] [--measured 300] [--home DIR]
        [--epochs 1] [--learning-rate-multiplier 1] [--beta 0.1] [--out benchmarks/results]

EDITS has `train.jsonl.xz` and `holdout.jsonl.xz`, records of real commits from different repositories. The run takes
the path of a user:

1. A server answers next-edit requests of training records, and captures its suggestions. A suggestion that changes the
   region is shown. It is reported to `/feedback` as accepted if it equals the wanted region or if its changed lines
   reach 95 deltaChrF, else as rejected; every change of a no-op is rejected.
2. `quicksilver feedback export --kto`, then `quicksilver tune --method kto`.
3. The server answers other requests with the base and with the tuned model, and the same rule judges them. They are of
   held-out repositories (`--on holdout`), or of training repositories without feedback (`--on validation`), on which
   hyperparameters are chosen.

4. With `--thresholds N` the tuned model answers N further requests of training repositories without feedback. The
   highest log-probability that hides no accepted edit among them is the threshold of `thresholded`.

The result has `shown` and `accepted` edits, their ratio, no-ops left alone, and a curve of the ratio if only the
likeliest edits are shown; `gain` has the ratio after over before, with a 90 % bootstrap interval over requests. With
`--home` every stage is kept there, and a further run with the same options for it does not repeat it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks import tune
from benchmarks.cpu_load import ROOT, server
from benchmarks.edit_records import HOLDOUT, TRAIN, EditorRequest, Limits, gives_feedback, read_records, requests_of
from quicksilver.accounts.objects import open_local
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import default_home, resolve
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.proposals import Proposal, by_kind, judged, selectivity_curve
from quicksilver.tuning.jobs import JOB, read_job

FEEDBACK_FILE = "feedback-kto.jsonl"
TIMEOUT_S = 900
# A server takes a limited number of reports per minute from one address.
REPORT_WAIT_S = 2.0
# Editors bound an answer; a longer one counts as unchanged, as the server returns it.
MAX_TOKENS = 400
NUM_SAMPLES = 2000
HYPERPARAMETERS = ("epochs", "batch_size", "learning_rate_multiplier", "beta", "rank", "seed")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, the id of its reply, and the judged answer."""

    request: EditorRequest
    reply_id: str
    proposal: Proposal


class Editor:
    """Sends requests as an editor does, several at a time."""

    def __init__(self, client: httpx.AsyncClient, model: str, tokenizer: Tokenizer, streams: int) -> None:
        self._client, self._model, self._tokenizer = client, model, tokenizer
        self._places = asyncio.Semaphore(streams)

    async def ask_all(self, requests: Sequence[EditorRequest]) -> list[Asked]:
        return list(await asyncio.gather(*map(self._ask, requests)))

    async def _ask(self, request: EditorRequest) -> Asked:
        messages = [{"role": "user", "content": request.message}]
        body = {"model": self._model, "messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS}
        reply = await self._post("/v1/edit/completions", body)
        text = reply["choices"][0]["message"]["content"].removeprefix("```\n").removesuffix("\n```")
        return Asked(request, reply["id"], judged(request.edit, self._ids(text), text, 0.0))

    def _ids(self, text: str) -> list[int]:
        end = self._tokenizer.roles.turn_close
        return [*self._tokenizer.encode(text), *([] if end is None else [end])]

    async def report_all(self, asked: Sequence[Asked], max_tokens: int) -> None:
        """What a user does with each edit that is shown. An edit that is not shown is not reported. Longer examples
        are not reported either: a CPU takes long to train on them."""
        for one in asked:
            if one.proposal.is_shown and len(one.proposal.prompt) + len(one.proposal.answer) <= max_tokens:
                action = "accept" if one.proposal.is_accepted else "reject"
                report = {"request_id": one.reply_id, "user_action": action}
                while not (await self._post("/feedback", report))["stored"]:
                    await asyncio.sleep(REPORT_WAIT_S)

    async def score_all(self, asked: Sequence[Asked]) -> list[Asked]:
        """With the log-probability of each shown answer."""
        return list(await asyncio.gather(*map(self._score, asked)))

    async def _score(self, one: Asked) -> Asked:
        if not one.proposal.is_shown:
            return one
        prompt, answer = one.proposal.prompt, one.proposal.answer
        body = {
            "model": self._model,
            "prompt": [*prompt, *answer],
            "max_tokens": 1,
            "echo": True,
            "logprobs": 0,
            "allow_special_ids": True,
        }
        reply = await self._post("/v1/completions", body)
        values = reply["choices"][0]["logprobs"]["token_logprobs"][len(prompt) : len(prompt) + len(answer)]
        return replace(one, proposal=replace(one.proposal, log_prob=sum(values)))

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._places:
            reply = await self._client.post(path, json=body)
        reply.raise_for_status()
        found: dict[str, Any] = reply.json()
        return found


async def collect(url: str, given: argparse.Namespace, tokenizer: Tokenizer, requests: Sequence[EditorRequest]) -> None:
    """Asks for edits and reports on them."""
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        editor = Editor(client, given.model, tokenizer, given.streams)
        await editor.report_all(await editor.ask_all(requests), given.example_tokens)


async def answers(
    url: str, model: str, given: argparse.Namespace, tokenizer: Tokenizer, requests: Sequence[EditorRequest]
) -> list[Asked]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        editor = Editor(client, model, tokenizer, given.streams)
        return await editor.score_all(await editor.ask_all(requests))


def figures(asked: Sequence[Asked]) -> dict[str, Any]:
    proposals = [one.proposal for one in asked]
    shown = [proposal for proposal in proposals if proposal.is_shown]
    noops = [one.proposal for one in asked if one.request.is_noop]
    accepted = sum(proposal.is_accepted for proposal in shown)
    curve = [{name: round(value, 4) for name, value in point.items()} for point in selectivity_curve(proposals)]
    kinds = by_kind(proposals)
    return {
        "requests": len(proposals),
        "shown": len(shown),
        "accepted": accepted,
        "accepted_of_shown": round(accepted / max(1, len(shown)), 4),
        "noops": len(noops),
        "noops_left_alone": sum(not proposal.is_shown for proposal in noops),
        "kinds": {kind: {name: round(value, 3) for name, value in each.items()} for kind, each in kinds.items()},
        "curve": curve,
    }


def ratio(pairs: Sequence[Proposal]) -> float:
    shown = [proposal for proposal in pairs if proposal.is_shown]
    return sum(proposal.is_accepted for proposal in shown) / max(1, len(shown))


def gain(before: Sequence[Asked], after: Sequence[Asked], seed: int = 1) -> dict[str, Any]:
    """Accepted of shown, after over before, with an interval over samples of the requests."""
    pairs = [(a.proposal, b.proposal) for a, b in zip(before, after, strict=True)]
    old, new = (ratio(each) for each in zip(*pairs, strict=True))
    rng, found = random.Random(seed), list[float]()
    for _ in range(NUM_SAMPLES):
        sampled = zip(*rng.choices(pairs, k=len(pairs)), strict=True)
        first, second = (ratio(each) for each in sampled)
        found.append(second / max(first, 1e-9))
    found.sort()
    low, high = found[NUM_SAMPLES // 20], found[-NUM_SAMPLES // 20]
    return {"ratio": round(new / max(old, 1e-9), 3), "interval_90": [round(low, 3), round(high, 3)]}


def threshold(feedback: Sequence[Asked], hidden: float = 0.0) -> float:
    """The highest log-probability below which at most this share of the accepted edits lies."""
    values = sorted(one.proposal.log_prob for one in feedback if one.proposal.is_shown and one.proposal.is_accepted)
    return values[math.floor(hidden * len(values))] if values else -math.inf


def hidden_below(asked: Sequence[Asked], least: float) -> list[Asked]:
    """The same answers; edits below the threshold are not shown, and so not accepted."""
    return [
        one
        if one.proposal.log_prob >= least or not one.proposal.is_shown
        else replace(one, proposal=replace(one.proposal, is_shown=False, is_accepted=False))
        for one in asked
    ]


def command(*words: str) -> None:
    """A command of `quicksilver` on the store of this run."""
    subprocess.run([sys.executable, "-c", tune.MAIN, *words], check=True, stdout=sys.stderr)


def make_requests(given: argparse.Namespace, tokenizer: Tokenizer) -> tuple[list[EditorRequest], ...]:
    """Requests for feedback, those that are measured, and those that choose a threshold."""
    limits = Limits(given.context_lines, given.prompt_tokens)
    parts: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for record in read_records(given.edits / TRAIN):
        parts[gives_feedback(record["repo"])].append(record)
    measured = list(read_records(given.edits / HOLDOUT)) if given.on == "holdout" else parts[False]
    return (
        requests_of(parts[True], given.feedback, tokenizer, limits, seed=2),
        requests_of(measured, given.measured, tokenizer, limits, seed=1),
        requests_of(parts[False], given.thresholds, tokenizer, limits, seed=3) if given.thresholds else [],
    )


def tuned_model(home: Path) -> dict[str, Any]:
    """The newest job of the store."""
    store = open_local(home / "objects.db")
    jobs = [read_job("", stored) for stored in store.find("", JOB, limit=100) or []]
    store.close()
    return max(jobs, key=lambda job: int(job.reply["finished_at"] or 0)).reply


def train(given: argparse.Namespace, home: Path) -> dict[str, Any]:
    """`quicksilver tune` on the exported lines: its seconds and its job."""
    options = {name: getattr(given, name) for name in HYPERPARAMETERS}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]
    ran = tune.run([str(home / FEEDBACK_FILE), "--model", given.model, "--method", "kto", *words], home)
    job = tuned_model(home)
    return {
        **{name: ran[name] for name in ("wall_s", "cpu_s", "first_estimate", "stages_begin_s")},
        "hyperparameters": job["hyperparameters"],
        "trained_tokens": job["trained_tokens"],
        "measured": job["quicksilver"],
        "model": job["fine_tuned_model"],
    }


def lines_of(home: Path) -> dict[str, int]:
    lines = [json.loads(line) for line in (home / FEEDBACK_FILE).read_text().splitlines()]
    sources = [line["source"] for line in lines if line["weight"] == 1]
    return {"lines": len(lines), "accepted": sources.count("accept"), "rejected": sources.count("reject")}


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What an earlier run has written, or what `make` returns, which is written."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


class Run:
    """One path from feedback to figures. Each stage is kept in `home`."""

    def __init__(self, given: argparse.Namespace, home: Path) -> None:
        self._given, self._home = given, home
        files = resolve(given.model)
        self._tokenizer = Tokenizer.for_model(files.weights, files.skill)
        self._asked, self._measured, self._choosing = make_requests(given, self._tokenizer)
        chosen = "-".join(str(getattr(given, name)) for name in HYPERPARAMETERS)
        self._trained, self._before = home / f"trained-{chosen}.json", home / f"{given.on}-before.json"
        self._after = home / f"{given.on}-after-{chosen}.json"
        self._chosen = home / f"choosing-after-{chosen}.json"

    def run(self) -> dict[str, Any]:
        feedback = kept(self._home / "feedback.json", self._collect)
        trained = kept(self._trained, lambda: train(self._given, self._home))
        if not (self._before.exists() and self._after.exists() and (self._chosen.exists() or not self._choosing)):
            with server(ROOT, self._given.model) as url:
                kept(self._before, lambda: self._answers(url, self._given.model, self._measured))
                kept(self._after, lambda: self._answers(url, trained["model"], self._measured))
                kept(self._chosen, lambda: self._answers(url, trained["model"], self._choosing))
        before, after = (self._read(path, self._measured) for path in (self._before, self._after))
        figured = {"before": figures(before), "after": figures(after), "gain": gain(before, after)}
        if self._choosing:
            least = threshold(self._read(self._chosen, self._choosing))
            rest = hidden_below(after, least)
            figured["thresholded"] = {
                "min_logprob": round(least, 3),
                "chosen_on": len(self._choosing),
                **figures(rest),
                "gain": gain(before, rest),
            }
        return {"feedback": feedback, "training": trained, **figured}

    def _collect(self) -> dict[str, Any]:
        command("feedback", "capture", "edit")
        begun = time.perf_counter()
        with server(ROOT, self._given.model) as url:
            asyncio.run(collect(url, self._given, self._tokenizer, self._asked))
        command("feedback", "export", "--kto", str(self._home / FEEDBACK_FILE))
        seconds = round(time.perf_counter() - begun, 1)
        return {"requests": len(self._asked), **lines_of(self._home), "seconds": seconds}

    def _answers(self, url: str, model: str, requests: Sequence[EditorRequest]) -> dict[str, Any]:
        begun = time.perf_counter()
        found = asyncio.run(answers(url, model, self._given, self._tokenizer, requests))
        seconds = round(time.perf_counter() - begun, 1)
        return {"seconds": seconds, "proposals": [asdict(one.proposal) for one in found]}

    @staticmethod
    def _read(path: Path, requests: Sequence[EditorRequest]) -> list[Asked]:
        proposals = [Proposal(**fields) for fields in json.loads(path.read_text())["proposals"]]
        assert [one.prompt for one in proposals] == [request.edit.prompt for request in requests]
        return [Asked(request, "", proposal) for request, proposal in zip(requests, proposals, strict=True)]


def parsed() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("edits", type=Path, help="folder of the records")
    words.add_argument("--model", default="nano")
    words.add_argument("--on", choices=("validation", "holdout"), default="validation")
    words.add_argument("--feedback", type=int, default=500, help="requests whose edits are reported")
    words.add_argument("--measured", type=int, default=300, help="requests before and after")
    words.add_argument("--thresholds", type=int, default=0, help="requests that choose a threshold for the tuned model")
    words.add_argument("--context-lines", type=int, default=4)
    words.add_argument("--prompt-tokens", type=int, default=400)
    words.add_argument("--example-tokens", type=int, default=500, help="the most of a reported edit with its prompt")
    words.add_argument("--streams", type=int, default=16)
    for name in HYPERPARAMETERS:
        words.add_argument(f"--{name.replace('_', '-')}", type=float if name[:2] in ("le", "be") else int)
    words.add_argument("--home", type=Path, help="folder of the store, kept")
    words.add_argument("--out", type=Path)
    return words.parse_args()


@contextmanager
def own_home(kept_at: Path | None) -> Iterator[Path]:
    """A home folder of this run with the models of the user's, at this place or temporary."""
    models = default_home() / "models"
    with tempfile.TemporaryDirectory() as folder:
        home = (kept_at or Path(folder)).resolve()
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "models").exists():
            (home / "models").symlink_to(models)
        os.environ["QUICKSILVER_HOME"] = str(home)
        yield home


def main() -> None:
    given = parsed()
    facts, load = machine_facts(), [round(each, 2) for each in os.getloadavg()]
    with own_home(given.home) as home:
        results = Run(given, home).run()
    cpu = torch.cpu.get_capabilities()
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    hardware = {"cpu": cpu["cpu_name"], "cores": os.cpu_count(), "torch": torch.__version__, "load_before": load, **gpu}
    settings = {name: value for name, value in vars(given).items() if name not in ("edits", "home", "out")}
    text = json.dumps({"benchmark": "feedback_kto", **facts, **hardware, "settings": settings, **results}, indent=1)
    print(text)
    if given.out:
        (given.out / f"feedback_kto-{given.on}-{facts['date'][:10]}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
