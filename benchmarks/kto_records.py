"""The records of real commits that a KTO sweep uses: which of them, and without the lines that no request shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.edit_records import HOLDOUT, TRAIN, EditorRequest, Limits, gives_feedback, read_records, request_of
from quicksilver.text.tokenizer import Tokenizer


def records_of(edits: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {"feedback": [], "validation": [], "holdout": []}
    for record in read_records(edits / TRAIN):
        found["feedback" if gives_feedback(record["repo"]) else "validation"].append(record)
    found["holdout"] = list(read_records(edits / HOLDOUT))
    return found


def shortened(record: dict[str, Any], context_lines: int) -> dict[str, Any]:
    """The record without the lines of its file that no request shows."""
    before, after = (record[name].split("\n") for name in ("before", "after"))
    shown = {
        "before": "\n".join(before[max(0, len(before) - context_lines) :]),
        "after": "\n".join(after[:context_lines]),
    }
    names = ("id", "repo", "path", "region", "target", "kind", "cursor", "history")
    return {**{name: record[name] for name in names}, **shown}


def picked(
    records: Sequence[dict[str, Any]], num: int, tokenizer: Tokenizer, limits: Limits, seed: int
) -> list[tuple[dict[str, Any], EditorRequest]]:
    """The first records, in a random order, whose prompt is short enough, with their requests."""
    order = sorted(records, key=lambda record: random.Random(f"{seed} {record['id']}").random())
    found: list[tuple[dict[str, Any], EditorRequest]] = []
    for record in order:
        if len(found) == num:
            break
        if (request := request_of(record, tokenizer, limits)) is not None:
            found.append((record, request))
    return found
