"""A threshold from feedback on edits: how many shown edits are accepted with it, on other repositories.

    python -m benchmarks.edit_threshold EDITS [--model nano] [--feedback 400] [--measured 400] [--out DIR]

EDITS has `train.jsonl.xz` and `holdout.jsonl.xz`, records of real commits from different repositories. A server answers
next-edit requests of both greedily, and every edit that changes its region is judged as in `feedback_kto.py`. The
threshold is chosen on the first ones: the highest log-probability that hides no accepted edit, as `all_accepted` of a
fine-tuning job, and the highest that hides at most a twentieth of them. The report has what both do to requests of
held-out repositories when they are the `edit_min_logprob` of the server. Nothing is trained.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.cpu_load import ROOT, server
from benchmarks.edit_records import HOLDOUT, TRAIN, EditorRequest, Limits, gives_feedback, read_records, requests_of
from benchmarks.feedback_kto import TIMEOUT_S, Asked, Editor, threshold
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import resolve
from quicksilver.text.tokenizer import Tokenizer

NUM_SAMPLES = 2000
# Shares of the accepted edits of the feedback that a threshold may hide.
HIDDEN = (0.0, 0.05)


async def answered(
    url: str, given: argparse.Namespace, tokenizer: Tokenizer, requests: Sequence[EditorRequest]
) -> list[Asked]:
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
        editor = Editor(client, given.model, tokenizer, given.streams)
        return await editor.score_all(await editor.ask_all(requests))


def figures(asked: Sequence[Asked], least: float) -> dict[str, Any]:
    shown = [one for one in asked if one.proposal.is_shown and one.proposal.log_prob >= least]
    accepted = sum(one.proposal.is_accepted for one in shown)
    noops = [one for one in asked if one.request.is_noop]
    return {
        "shown": len(shown),
        "accepted": accepted,
        "accepted_of_shown": round(accepted / max(1, len(shown)), 4),
        "noops": len(noops),
        "noops_left_alone": len(noops) - sum(one.request.is_noop for one in shown),
    }


def gain(asked: Sequence[Asked], least: float, seed: int = 1) -> dict[str, Any]:
    """Accepted of shown, with the threshold over without it, and a 90 % interval over samples of the requests."""

    def ratio(sample: Sequence[Asked]) -> float:
        without, with_it = (figures(sample, each)["accepted_of_shown"] for each in (-math.inf, least))
        return float(with_it / max(without, 1e-9))

    rng = random.Random(seed)
    found = sorted(ratio(rng.choices(asked, k=len(asked))) for _ in range(NUM_SAMPLES))
    interval = [round(found[NUM_SAMPLES // 20], 3), round(found[-NUM_SAMPLES // 20], 3)]
    return {"ratio": round(ratio(asked), 3), "interval_90": interval}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    files = resolve(given.model)
    tokenizer = Tokenizer.for_model(files.weights, files.skill)
    limits = Limits(given.context_lines, given.prompt_tokens)
    records = [record for record in read_records(given.edits / TRAIN) if gives_feedback(record["repo"])]
    asked = (
        requests_of(records, given.feedback, tokenizer, limits, seed=2),
        requests_of(list(read_records(given.edits / HOLDOUT)), given.measured, tokenizer, limits, seed=1),
    )
    with server(ROOT, given.model) as url:
        feedback, measured = (asyncio.run(answered(url, given, tokenizer, each)) for each in asked)
    rows = []
    for hidden in HIDDEN:
        least = threshold(feedback, hidden)
        rows.append(
            {
                "hidden_of_accepted_at_most": hidden,
                "min_logprob": round(least, 3),
                "feedback": figures(feedback, least),
                "held_out": figures(measured, least),
                "gain": gain(measured, least),
            }
        )
    return {
        "feedback_requests": len(feedback),
        "held_out_requests": len(measured),
        "feedback": figures(feedback, -math.inf),
        "held_out": figures(measured, -math.inf),
        "thresholds": rows,
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("edits", type=Path, help="folder of the records")
    words.add_argument("--model", default="nano")
    words.add_argument("--feedback", type=int, default=400, help="requests whose edits choose the threshold")
    words.add_argument("--measured", type=int, default=400, help="requests of held-out repositories")
    words.add_argument("--context-lines", type=int, default=4)
    words.add_argument("--prompt-tokens", type=int, default=400)
    words.add_argument("--streams", type=int, default=16)
    words.add_argument("--out", type=Path)
    given = words.parse_args()
    facts, load = machine_facts(), [round(each, 2) for each in os.getloadavg()]
    cpu = torch.cpu.get_capabilities()
    hardware = {"cpu": cpu["cpu_name"], "cores": os.cpu_count(), "torch": torch.__version__, "load_before": load}
    settings = {name: value for name, value in vars(given).items() if name not in ("edits", "out")}
    report = {"benchmark": "edit_threshold", **facts, **hardware, "settings": settings, **measure(given)}
    text = json.dumps(report, indent=1)
    print(text)
    if given.out:
        (given.out / f"edit_threshold-{given.model}-{facts['date'][:10]}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
