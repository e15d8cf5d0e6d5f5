"""Next edits of a skill adapter on held-out repositories and on editor scenarios, answered in large batches.

    python -m benchmarks.edit_holdout prepare --base BASE --holdout holdout.jsonl.xz --scenarios edits.json --out DIR
    python -m benchmarks.edit_holdout run DIR --base BASE --skill A.safetensors [B.safetensors ...] [--out results]

`prepare` writes the requests as token ids, so that a GPU machine needs no data. `run` answers them greedily with each
adapter merged into the base and reports, per kind of edit, how many answers change the region and how many are
accepted: they equal the expected region, or their changed lines reach 95 deltaChrF. Answers to scenarios are kept as
text; `shared tools` that ask a server score them, too.
"""

from __future__ import annotations

import argparse
import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from quicksilver.editing.prompts import edit_prompt, parse_edit
from quicksilver.evals.report import machine_facts
from quicksilver.hub.data_files import read_records
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.answers import AnswerDecoder, Asked
from quicksilver.training.export import load_base
from quicksilver.training.formats import Formatter
from quicksilver.training.network import Network
from quicksilver.training.proposals import (
    EditPrompt,
    Proposal,
    answer_room,
    by_kind,
    delta_chrf,
    judged,
    proposed,
    read_edit_prompts,
    selectivity_text,
    write_edit_prompts,
)
from quicksilver.training.recipe import Propose
from quicksilver.training.rows import EditRow
from quicksilver.training.synthesis.commits import commit_rows, request_of

VARIED, PLAIN, SCENARIOS = "varied.json.xz", "plain.json.xz", "scenarios.json.xz"
ROW_LEN = 2048


def prepare(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer.load(options.base).with_reserved()
    formatter, rng = Formatter(tokenizer, ROW_LEN), random.Random("holdout")
    varied, plain = [], []
    for record in read_records(options.holdout):
        kind = str(record["kind"])
        varied += [_prompt(formatter, row, kind) for row in commit_rows(record, rng)]
        plain.append(_prompt(formatter, EditRow(request_of(record), str(record["target"])), kind))
    options.out.mkdir(parents=True, exist_ok=True)
    for name, prompts in ((VARIED, varied), (PLAIN, plain)):
        write_edit_prompts(options.out / name, [prompt for prompt in prompts if prompt is not None])
    if options.scenarios:
        write_edit_prompts(options.out / SCENARIOS, _scenarios(options.scenarios, tokenizer))


def _prompt(formatter: Formatter, row: EditRow, kind: str) -> EditPrompt | None:
    """None where the request does not fit a row with its answer."""
    prompt = formatter.prompt(row)
    if prompt is None or next(formatter.documents(row), None) is None:
        return None
    return EditPrompt(prompt, row.request.region, row.answer, kind)


def _scenarios(path: Path, tokenizer: Tokenizer) -> list[EditPrompt]:
    """Requests word for word as an editor sends them. The expected text is of the whole buffer, so the region that
    should result is what lies between the parts of the buffer around the region."""
    found = []
    for case in json.loads(path.read_text()):
        request = parse_edit(case["prompt"])
        region, target = request.region, request.region
        if case["wants_edit"]:
            buffer, expected = case["buffer"].rstrip("\n"), case["expected"].rstrip("\n")
            start = buffer.index(region.rstrip("\n"))
            end = len(buffer) - start - len(region.rstrip("\n"))
            target = expected[start : len(expected) - end]
        found.append(EditPrompt(edit_prompt(tokenizer, request), region, target, case["name"]))
    return found


def run(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer.load(options.base).with_reserved()
    stop_ids = [tokenizer.roles.turn_close] if tokenizer.roles.turn_close is not None else []
    report: dict[str, Any] = {"machine": machine_facts(), "results": []}
    for skill in options.skill:
        network = Network(load_base(options.base, skill).to(options.device, _dtype(options.device)).eval())
        decoder = AnswerDecoder(network, options.batch, ROW_LEN, stop_ids)
        result: dict[str, Any] = {"skill": skill.name}
        for name in (VARIED, PLAIN):
            prompts = read_edit_prompts(options.data / name)[: options.limit or None]
            found = proposed(decoder, prompts, Propose(options.batch, ROW_LEN, max_seconds=600.0), tokenizer)
            result[name.partition(".")[0]] = by_kind(found) | {"curve": selectivity_text(found)}
        result["scenarios"] = _answered(decoder, options.data / SCENARIOS, tokenizer)
        report["results"].append(result)
        print(json.dumps({k: v for k, v in result.items() if k != "scenarios"}, indent=1), flush=True)
        print(json.dumps(score_of(result["scenarios"])), flush=True)
        del network, decoder
    options.out.mkdir(parents=True, exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    (options.out / f"edit_holdout-{stamp}.json").write_text(json.dumps(report, indent=1) + "\n")


def _dtype(device: str) -> Any:
    import torch

    return torch.bfloat16 if device == "cuda" else torch.float32


def _answered(decoder: AnswerDecoder, path: Path, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Replies to the scenarios, with deltaChrF where an edit is wanted."""
    if not path.exists():
        return []
    edits = read_edit_prompts(path)
    asked = [Asked(edit.prompt, answer_room(tokenizer, edit.region, 120)) for edit in edits]
    found = []
    for edit, answer in zip(edits, decoder.answers(asked), strict=True):
        text = tokenizer.decode(answer.token_ids)
        proposal: Proposal = judged(edit, answer.token_ids, text, answer.log_prob)
        is_wanted = edit.target.rstrip() != edit.region.rstrip()
        chrf = delta_chrf(edit.region, text, edit.target) if is_wanted and proposal.is_shown else 0.0
        found.append(
            {"name": edit.kind, "wanted": is_wanted, "shown": proposal.is_shown, "delta_chrf": chrf, "reply": text}
        )
    return found


def score_of(scenarios: list[dict[str, Any]]) -> dict[str, float]:
    """Mean deltaChrF of wanted edits times the harmonic mean of the shown share and of the quiet share."""
    wanted = [one for one in scenarios if one["wanted"]]
    others = [one for one in scenarios if not one["wanted"]]
    if not wanted or not others:
        return {}
    show = sum(one["shown"] for one in wanted) / len(wanted)
    quiet = sum(not one["shown"] for one in others) / len(others)
    chrf = sum(one["delta_chrf"] for one in wanted) / len(wanted)
    gate = 2 * show * quiet / (show + quiet) if show + quiet else 0.0
    return {"delta_chrf": chrf, "show": show, "quiet": quiet, "score": chrf / 100 * gate}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = words.add_subparsers(required=True)
    first = parts.add_parser("prepare")
    first.add_argument("--holdout", type=Path, required=True)
    first.add_argument("--scenarios", type=Path)
    first.set_defaults(main=prepare)
    second = parts.add_parser("run")
    second.add_argument("data", type=Path)
    second.add_argument("--skill", type=Path, nargs="+", required=True)
    second.add_argument("--device", default="cuda")
    second.add_argument("--batch", type=int, default=512)
    second.add_argument("--limit", type=int, default=0, help="requests per set; 0 takes all")
    second.set_defaults(main=run)
    for part in (first, second):
        part.add_argument("--base", type=Path, required=True)
        part.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = words.parse_args()
    options.main(options)


if __name__ == "__main__":
    main()
