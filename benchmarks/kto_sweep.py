"""Several KTO settings on the same feedback; the one that is measured on held-out repositories is chosen on others.

    python -m benchmarks.kto_sweep --pack EDITS --edits SMALL [--feedback 3000] [--validation 2000]
    python -m benchmarks.kto_sweep --edits SMALL --home DIR [--settings 1,0.1,0 0.4,0.1,0.5] [--out DIR]

The path of a user, as in `feedback_kto.py`, with one server for all stages:

1. The base answers requests of the feedback repositories; every shown edit is reported, and the reports are exported.
2. Each setting (factor of the learning rate, beta, weight of the unchanged region of a rejected edit) is learned by
   `quicksilver tune --method kto` in a process of its own, while the base answers the other requests.
3. Every tuned model answers the validation requests, of training repositories without feedback. For each model the
   threshold of its log-probability is the highest one that keeps `--margin` more accepted edits than the base has
   without a threshold. The setting with the highest accepted ÷ shown is chosen.
4. The chosen model alone answers the requests of the held-out repositories.

The report has the base as it is served by default, the base with a threshold of its own (the highest that hides at most
a share of its accepted edits of the validation requests), and the chosen model without and with its threshold.
`--pack` writes the records that a run with the same numbers reads, so that little has to be copied to another machine.
Every stage is kept in `--home`: the same command continues. After `--seconds` no further training begins.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import math
import os
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks import tune
from benchmarks.cpu_load import ROOT, server
from benchmarks.edit_records import HOLDOUT, TRAIN, EditorRequest, Limits
from benchmarks.feedback_kto import (
    NUM_SAMPLES,
    TIMEOUT_S,
    Asked,
    Editor,
    command,
    figures,
    gain,
    hidden_below,
    kept,
    lines_of,
    own_home,
    threshold,
)
from benchmarks.kto_records import picked, records_of, shortened
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import resolve
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.proposals import Proposal

STARTED = time.perf_counter()
# Editors at addresses of their own: a server takes a limited number of reports per minute from one address.
NUM_EDITORS = 6
# Shares of the accepted edits that a threshold for the base may hide.
HIDDEN = (0.0, 0.02, 0.05)
SEEDS = {"feedback": 2, "validation": 3, "holdout": 1}


@dataclass(frozen=True, slots=True)
class Setting:
    """Of one tuned model. `unchanged` is the weight of the region without a rejected edit."""

    learning_rate_multiplier: float
    beta: float
    unchanged: float

    @classmethod
    def parse(cls, text: str) -> Setting:
        rate, beta, unchanged = map(float, text.split(","))
        return cls(rate, beta, unchanged)

    @property
    def name(self) -> str:
        return f"{self.learning_rate_multiplier:g}-{self.beta:g}-{self.unchanged:g}"

    @property
    def lines(self) -> str:
        return f"feedback-kto-{self.unchanged:g}.jsonl"


def say(text: str) -> None:
    print(f"{time.perf_counter() - STARTED:7.1f} s  {text}", file=sys.stderr, flush=True)


def pack(given: argparse.Namespace, tokenizer: Tokenizer) -> None:
    given.edits.mkdir(parents=True, exist_ok=True)
    limits, kept_records = Limits(given.context_lines, given.prompt_tokens), dict[str, list[dict[str, Any]]]()
    for name, records in records_of(given.pack).items():
        chosen = picked(records, getattr(given, name), tokenizer, limits, SEEDS[name])
        kept_records[name] = [shortened(record, given.context_lines) for record, _ in chosen]
        say(f"{name}: {len(chosen)} requests")
    for file, names in ((TRAIN, ("feedback", "validation")), (HOLDOUT, ("holdout",))):
        with lzma.open(given.edits / file, "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(record) + "\n" for name in names for record in kept_records[name])
        say(f"{(given.edits / file).stat().st_size} bytes in {given.edits / file}")


def with_threshold(asked: Sequence[Asked], least_accepted: int) -> float | None:
    """The highest log-probability that hides so few edits that `least_accepted` accepted ones are left; None if there
    are not as many."""
    values = sorted(one.proposal.log_prob for one in asked if one.proposal.is_shown and one.proposal.is_accepted)
    return values[len(values) - least_accepted] if 0 < least_accepted <= len(values) else None


def accepted_change(before: Sequence[Asked], after: Sequence[Asked], seed: int = 1) -> dict[str, Any]:
    """Accepted edits after less before, with a 90 % interval over samples of the requests."""

    def is_accepted(one: Asked) -> int:
        return int(one.proposal.is_shown and one.proposal.is_accepted)

    changes = [is_accepted(b) - is_accepted(a) for a, b in zip(before, after, strict=True)]
    rng = random.Random(seed)
    sums = sorted(sum(rng.choices(changes, k=len(changes))) for _ in range(NUM_SAMPLES))
    return {"change": sum(changes), "interval_90": [sums[NUM_SAMPLES // 20], sums[-NUM_SAMPLES // 20]]}


def least_accepted(base: Sequence[Asked], margin: float) -> int:
    return math.ceil(int(figures(base)["accepted"]) * (1 + margin) - 1e-9)


def chosen_of(base: Sequence[Asked], tuned: dict[str, Sequence[Asked]], margin: float) -> tuple[dict[str, Any], str]:
    """For each setting its threshold and its figures on the validation requests, and the setting that is chosen. If no
    setting has as many accepted edits as the margin asks for, the margin is 0; then the one with the most is chosen."""
    rows: dict[str, Any] = {}
    for asked_margin in (margin, 0.0):
        for name, asked in tuned.items():
            least = with_threshold(asked, least_accepted(base, asked_margin))
            rest = None if least is None else figures(hidden_below(asked, least))
            row = {"margin": asked_margin, "min_logprob": least, "without": figures(asked), "with_threshold": rest}
            if name not in rows or (rows[name]["min_logprob"] is None and least is not None):
                rows[name] = row
        if any(row["min_logprob"] is not None for row in rows.values()):
            break
    able = {name: row for name, row in rows.items() if row["min_logprob"] is not None}
    if able:
        return rows, max(able, key=lambda name: able[name]["with_threshold"]["accepted_of_shown"])
    return rows, max(rows, key=lambda name: rows[name]["without"]["accepted"])


class Sweep:
    """Each stage is kept in `home`."""

    def __init__(self, given: argparse.Namespace, home: Path) -> None:
        self._given, self._home = given, home
        files = resolve(given.model)
        self._tokenizer = Tokenizer.for_model(files.weights, files.skill)
        self._settings = [Setting.parse(text) for text in given.settings]

    @cached_property
    def _requests(self) -> dict[str, list[EditorRequest]]:
        limits = Limits(self._given.context_lines, self._given.prompt_tokens)
        return {
            name: [
                request
                for _, request in picked(records, getattr(self._given, name), self._tokenizer, limits, SEEDS[name])
            ]
            for name, records in records_of(self._given.edits).items()
        }

    @property
    def is_answered(self) -> bool:
        """Whether every answer of the report is kept, also if the store of the tuned models is not."""
        if not all(self._answers_path("base", on).exists() for on in ("validation", "holdout")):
            return False
        names = [each.name for each in self._settings if self._answers_path(each.name, "validation").exists()]
        return bool(names) and self._answers_path(self.choice()["chosen"], "holdout").exists()

    def run(self) -> None:
        say(", ".join(f"{name} {len(requests)} requests" for name, requests in self._requests.items()))
        options = ["--no-companion", *(["--kv-bytes", str(self._given.kv_bytes)] if self._given.kv_bytes else [])]
        with server(ROOT, self._given.model, *options, kept_log=self._home / "server.log") as url:
            say("the server is ready")
            feedback = kept(self._home / "feedback.json", lambda: self._collect(url))
            say(f"feedback: {feedback}")
            with ThreadPoolExecutor(self._given.at_once) as pool:
                jobs = {pool.submit(self._train, setting): setting.name for setting in self._settings}
                for on in ("validation", "holdout"):
                    self._answered(url, "base", self._given.model, on)
                for job in as_completed(jobs):
                    if (trained := job.result()) is not None:
                        self._answered(url, jobs[job], trained["model"], "validation")
            chosen = self.choice()["chosen"]
            self._answered(url, chosen, self._trained_file(chosen), "holdout")

    def _collect(self, url: str) -> dict[str, Any]:
        command("feedback", "capture", "edit")
        begun = time.perf_counter()
        asked = asyncio.run(self._ask_and_report(url))
        say(f"{len(asked)} edits were asked for and reported")
        for weight in sorted({setting.unchanged for setting in self._settings} | {0.0}):
            lines = self._home / Setting(1, 1, weight).lines
            command("feedback", "export", "--kto", "--unchanged", str(weight), str(lines))
        (self._home / "feedback-kto.jsonl").write_bytes((self._home / Setting(1, 1, 0).lines).read_bytes())
        seconds = round(time.perf_counter() - begun, 1)
        return {"requests": len(asked), **lines_of(self._home), "seconds": seconds}

    async def _ask_and_report(self, url: str) -> list[Asked]:
        limits = httpx.Limits(max_connections=self._given.streams)
        async with AsyncExitStack() as stack:
            editors = []
            for number in range(NUM_EDITORS):
                transport = httpx.AsyncHTTPTransport(local_address=f"127.0.0.{1 + number}", limits=limits)
                client = httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, transport=transport)
                await stack.enter_async_context(client)
                streams = max(1, self._given.streams // NUM_EDITORS)
                editors.append(Editor(client, self._given.model, self._tokenizer, streams))
            shares = [self._requests["feedback"][number::NUM_EDITORS] for number in range(NUM_EDITORS)]
            asked = await asyncio.gather(*(each.ask_all(share) for each, share in zip(editors, shares, strict=True)))
            say("edits are answered")
            tokens = self._given.example_tokens
            await asyncio.gather(*(each.report_all(one, tokens) for each, one in zip(editors, asked, strict=True)))
        return [one for part in asked for one in part]

    def _trained_path(self, name: str) -> Path:
        return self._home / f"trained-{name}.json"

    def _trained_file(self, name: str) -> str:
        return str(json.loads(self._trained_path(name).read_text())["model"])

    def _train(self, setting: Setting) -> dict[str, Any] | None:
        path = self._trained_path(setting.name)
        if not path.exists() and time.perf_counter() - STARTED > self._given.seconds:
            say(f"{setting.name} is left out: no time")
            return None
        try:
            trained = kept(path, lambda: self._tune(setting))
        except (SystemExit, OSError) as error:
            say(f"{setting.name} failed: {str(error)[-800:]}")
            return None
        say(f"{setting.name} is trained: {trained['wall_s']} s")
        return trained

    def _tune(self, setting: Setting) -> dict[str, Any]:
        words = [str(self._home / setting.lines), "--model", self._given.model, "--method", "kto"]
        words += [f"--learning-rate-multiplier={setting.learning_rate_multiplier}", f"--beta={setting.beta}"]
        words += [f"--epochs={self._given.epochs}", f"--batch-size={self._given.batch_size}", "--threads=2"]
        ran = tune.run(words, self._home)
        model = next(line.removeprefix("model: ") for line in ran["output"] if line.startswith("model: "))
        return {"setting": asdict(setting), "model": model, **{name: ran[name] for name in ("wall_s", "output")}}

    def _answers_path(self, name: str, on: str) -> Path:
        return self._home / f"{on}-{name}.json"

    def _answered(self, url: str, name: str, model: str, on: str) -> None:
        answers = kept(self._answers_path(name, on), lambda: self._answers(url, model, on))
        asked = self._read(name, on)
        counted = {key: value for key, value in figures(asked).items() if key not in ("curve", "kinds")}
        say(f"{on}, {name}: {answers['seconds']} s, {counted}")

    def _answers(self, url: str, model: str, on: str) -> dict[str, Any]:
        async def ask() -> list[Asked]:
            limits = httpx.Limits(max_connections=self._given.streams)
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
                editor = Editor(client, model, self._tokenizer, self._given.streams)
                return await editor.score_all(await editor.ask_all(self._requests[on]))

        begun = time.perf_counter()
        found = asyncio.run(ask())
        seconds = round(time.perf_counter() - begun, 1)
        fields = ("answer", "is_shown", "is_accepted", "log_prob")
        return {"seconds": seconds, "proposals": [[getattr(one.proposal, name) for name in fields] for one in found]}

    def _read(self, name: str, on: str) -> list[Asked]:
        rows = json.loads(self._answers_path(name, on).read_text())["proposals"]
        return [
            Asked(
                request, "", Proposal(request.edit.prompt, answer, request.edit.kind, is_shown, is_accepted, log_prob)
            )
            for request, (answer, is_shown, is_accepted, log_prob) in zip(self._requests[on], rows, strict=True)
        ]

    def choice(self) -> dict[str, Any]:
        """The thresholds of all models that answered the validation requests, and the setting that is chosen."""
        base = self._read("base", "validation")
        names = [each.name for each in self._settings if self._answers_path(each.name, "validation").exists()]
        if not names:
            raise SystemExit("no tuned model has answered the validation requests; run the same command again")
        rows, chosen = chosen_of(base, {name: self._read(name, "validation") for name in names}, self._given.margin)
        for name, row in rows.items():
            say(f"validation, {name}: threshold {row['min_logprob']}, {_short(row['with_threshold'])}")
        say(f"chosen: {chosen}")
        return {"base": figures(base), "settings": rows, "chosen": chosen}

    def report(self) -> dict[str, Any]:
        choice = self.choice()
        chosen, before = choice["chosen"], self._read("base", "holdout")
        validation, after = self._read("base", "validation"), self._read(chosen, "holdout")
        least = choice["settings"][chosen]["min_logprob"]
        found: dict[str, Any] = {"feedback": json.loads((self._home / "feedback.json").read_text())}
        found |= {"training": json.loads(self._trained_path(chosen).read_text()), "validation": choice}
        found |= {"before": figures(before), "after_without_threshold": self._compared(before, after)}
        thresholds = [(hidden, threshold(validation, hidden)) for hidden in HIDDEN]
        found["base_with_threshold"] = [
            {"hidden_of_accepted_at_most": hidden, **self._compared(before, before, each)}
            for hidden, each in thresholds
        ]
        if least is not None:
            found["after"] = self._compared(before, after, least)
            same = hidden_below(before, thresholds[0][1])
            found["over_base_with_threshold"] = gain(same, hidden_below(after, least))
        return found

    @staticmethod
    def _compared(before: Sequence[Asked], after: Sequence[Asked], least: float = -math.inf) -> dict[str, Any]:
        """Figures of the answers with a threshold, beside the base without one."""
        rest = hidden_below(after, least)
        compared = {"gain": gain(before, rest), "accepted_change": accepted_change(before, rest)}
        return {"min_logprob": round(least, 3) if math.isfinite(least) else None, **figures(rest), **compared}


def _short(found: dict[str, Any] | None) -> str:
    return (
        "too few accepted"
        if found is None
        else ", ".join(f"{name} {found[name]}" for name in ("shown", "accepted", "accepted_of_shown"))
    )


def parsed() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--edits", type=Path, required=True, help="folder of the records")
    words.add_argument("--pack", type=Path, help="folder of all records; writes the chosen ones to --edits and ends")
    words.add_argument("--model", default="nano")
    words.add_argument("--feedback", type=int, default=3000, help="requests whose edits are reported")
    words.add_argument(
        "--validation", type=int, default=2000, help="requests that choose the setting and the threshold"
    )
    words.add_argument("--holdout", type=int, default=1200, help="requests of held-out repositories, before and after")
    words.add_argument("--context-lines", type=int, default=4)
    words.add_argument("--prompt-tokens", type=int, default=640)
    words.add_argument("--example-tokens", type=int, default=900, help="the most of a reported edit with its prompt")
    words.add_argument("--streams", type=int, default=192)
    words.add_argument("--epochs", type=int, default=1)
    words.add_argument("--batch-size", type=int, default=16)
    words.add_argument(
        "--settings",
        nargs="+",
        default=["1,0.1,0", "0.4,0.1,0", "1,0.1,0.5", "0.4,0.1,0.5", "1,0.3,0"],
        help="factor of the learning rate 5e-5, beta, weight of the unchanged region",
    )
    words.add_argument("--margin", type=float, default=0.02, help="more accepted edits than the base, on validation")
    words.add_argument("--at-once", type=int, default=4, help="settings that are trained at a time")
    words.add_argument("--kv-bytes", type=int, default=0, help="of the server")
    words.add_argument("--seconds", type=float, default=math.inf, help="after which no further training begins")
    words.add_argument("--home", type=Path, help="folder of the store, kept")
    words.add_argument("--out", type=Path)
    return words.parse_args()


def main() -> None:
    given = parsed()
    if given.pack:
        files = resolve(given.model)
        pack(given, Tokenizer.for_model(files.weights, files.skill))
        return
    with own_home(given.home) as home:
        sweep = Sweep(given, home)
        if not sweep.is_answered:
            sweep.run()
        results = sweep.report()
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    hardware = {"cores": os.cpu_count(), "torch": torch.__version__, **gpu}
    settings = {name: value for name, value in vars(given).items() if name not in ("edits", "home", "out", "pack")}
    settings["seconds"] = None if math.isinf(given.seconds) else given.seconds
    facts = machine_facts()
    text = json.dumps({"benchmark": "kto_sweep", **facts, **hardware, "settings": settings, **results}, indent=1)
    print(text)
    if given.out:
        (given.out / f"kto_sweep-{facts['date'][:10]}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
