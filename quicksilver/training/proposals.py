"""Proposals: answers of the model itself to next-edit requests, and whether they are accepted.

The skilled model answers greedily. A proposal is accepted if it equals the expected region or if its changed lines are
nearly those of the expected one. If the region should stay, every change is rejected.
"""

from __future__ import annotations

import json
import lzma
import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quicksilver.training.answers import AnswerDecoder, Asked
from quicksilver.training.pack import Document
from quicksilver.training.recipe import Propose

if TYPE_CHECKING:
    from quicksilver.text.tokenizer import Tokenizer

ACCEPTED_CHRF = 95.0
_ORDER, _BETA = 6, 2.0


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """The prompt of a next edit, with the region before it and the expected region after it.

    `expected` are the ids of the expected answer, empty where nothing learns from it."""

    prompt: list[int]
    region: str
    target: str
    kind: str
    expected: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Proposal:
    """An answer of the model to an EditPrompt. `log_prob` is that of the whole answer."""

    prompt: list[int]
    answer: list[int]
    kind: str
    is_shown: bool
    is_accepted: bool
    log_prob: float = 0.0
    expected: list[int] = field(default_factory=list)

    def document(self) -> Document:
        return self._followed_by(self.answer)

    def expected_document(self) -> Document:
        return self._followed_by(self.expected)

    def _followed_by(self, answer: list[int]) -> Document:
        ids = np.array([*self.prompt, *answer], dtype=np.int32)
        is_answer = np.arange(len(ids)) >= len(self.prompt)
        return Document(ids, is_answer, np.zeros_like(is_answer))


def judged(edit: EditPrompt, answer: list[int], text: str, log_prob: float) -> Proposal:
    """The proposal for an answer, given as ids and as text."""
    is_shown = text.rstrip() != edit.region.rstrip()
    return Proposal(edit.prompt, answer, edit.kind, is_shown, is_accepted(edit, text), log_prob, edit.expected)


def is_accepted(edit: EditPrompt, text: str) -> bool:
    if text.rstrip() == edit.target.rstrip():
        return True
    if edit.target.rstrip() == edit.region.rstrip() or text.rstrip() == edit.region.rstrip():
        return False
    return delta_chrf(edit.region, text, edit.target) >= ACCEPTED_CHRF


def delta_chrf(region: str, answer: str, target: str) -> float:
    """Character n-gram F-score (0 to 100) of the lines that the answer changes against those that should change."""
    before = region.rstrip("\n").split("\n")
    got, wanted = (_changed(before, text.rstrip("\n").split("\n")) for text in (answer, target))
    return chrf(got, wanted)


def chrf(candidate: str, reference: str) -> float:
    """chrF with n-grams of 1 to 6 characters, recall weighted twice, white space included."""
    scores = []
    for size in range(1, _ORDER + 1):
        a, b = _grams(candidate, size), _grams(reference, size)
        if not a and not b:
            continue
        shared = (a & b).total()
        precision, recall = shared / max(a.total(), 1), shared / max(b.total(), 1)
        weight = _BETA**2
        scores.append((1 + weight) * precision * recall / (weight * precision + recall) if shared else 0.0)
    return 100 * sum(scores) / len(scores) if scores else 100.0


def _grams(text: str, size: int) -> Counter[str]:
    return Counter(text[i : i + size] for i in range(len(text) - size + 1))


def _changed(before: list[str], after: list[str]) -> str:
    """Lines of `after` between the common head and the common tail."""
    shorter = min(len(before), len(after))
    head = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if before[-1 - i] != after[-1 - i]), rest)
    return "\n".join(after[head : len(after) - tail])


def selectivity_curve(proposals: Sequence[Proposal], num_points: int = 11) -> list[dict[str, float]]:
    """Shares of all requests that are shown and accepted, if only the surest proposals are shown.

    A proposal is surer the higher its log-probability is. The first point shows every proposal that changes its region.
    """
    shown = sorted((p for p in proposals if p.is_shown), key=lambda p: -p.log_prob)
    points = []
    for number in range(num_points):
        kept = shown[: round(len(shown) * (num_points - number) / num_points)]
        accepted = sum(p.is_accepted for p in kept)
        points.append(
            {
                "shown": len(kept) / max(len(proposals), 1),
                "accepted": accepted / max(len(proposals), 1),
                "accepted_of_shown": accepted / max(len(kept), 1),
                "log_prob": kept[-1].log_prob if kept else 0.0,
            }
        )
    return points


def selectivity_text(proposals: Sequence[Proposal]) -> str:
    """The curve in one line: at each share that is shown, the share that is accepted and its part of what is shown."""
    points = (
        f"{point['shown']:.2f} -> {point['accepted']:.2f} ({100 * point['accepted_of_shown']:.0f} %)"
        for point in selectivity_curve(proposals, num_points=5)
    )
    return "shown -> accepted: " + ", ".join(points)


def thinned(proposals: Sequence[Proposal], accepted_per_rejected: float, seed: int) -> list[Proposal]:
    """All rejected proposals and at most so many accepted ones per rejected one, in a random order."""
    rng = random.Random(seed)
    accepted = [p for p in proposals if p.is_accepted]
    rejected = [p for p in proposals if not p.is_accepted]
    rng.shuffle(accepted)
    kept = accepted[: round(len(rejected) * accepted_per_rejected)] if accepted_per_rejected else accepted
    mixed = [*kept, *rejected]
    rng.shuffle(mixed)
    return mixed


def by_kind(proposals: Iterable[Proposal]) -> dict[str, dict[str, float]]:
    """Per kind of edit: the number, and the shares that are shown and accepted."""
    kinds: dict[str, list[Proposal]] = {}
    for proposal in proposals:
        kinds.setdefault(proposal.kind, []).append(proposal)
    return {
        kind: {
            "count": len(found),
            "shown": sum(p.is_shown for p in found) / len(found),
            "accepted": sum(p.is_accepted for p in found) / len(found),
        }
        for kind, found in sorted(kinds.items())
    }


def write_edit_prompts(path: Path, edits: Sequence[EditPrompt]) -> None:
    _write(path, [asdict(edit) for edit in edits])


def read_edit_prompts(path: Path) -> list[EditPrompt]:
    return [EditPrompt(**fields) for fields in _read(path)]


def write_proposals(path: Path, proposals: Sequence[Proposal]) -> None:
    _write(path, [asdict(proposal) for proposal in proposals])


def read_proposals(path: Path) -> list[Proposal]:
    return [Proposal(**fields) for fields in _read(path)]


def _write(path: Path, items: Sequence[Mapping[str, object]]) -> None:
    path.write_bytes(lzma.compress(json.dumps(items).encode(), preset=1))


def _read(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return found


# An answer may be this many times as long as its region, besides the spare tokens.
_ROOM_RATIO = 1.5


def proposed(
    decoder: AnswerDecoder, edits: Sequence[EditPrompt], spec: Propose, tokenizer: Tokenizer
) -> list[Proposal]:
    """Judged proposals, until all requests are answered or the time is over."""
    began, found = time.monotonic(), list[Proposal]()
    # Long answers come last, so that the time runs out on few of them.
    ordered = sorted(edits, key=lambda edit: len(edit.region))
    for start in range(0, len(ordered), spec.batch):
        part = ordered[start : start + spec.batch]
        asked = [Asked(edit.prompt, answer_room(tokenizer, edit.region, spec.spare_tokens)) for edit in part]
        for edit, answer in zip(part, decoder.answers(asked), strict=True):
            found.append(judged(edit, answer.token_ids, tokenizer.decode(answer.token_ids), answer.log_prob))
        if time.monotonic() - began > spec.max_seconds:
            break
    return found


def answer_room(tokenizer: Tokenizer, region: str, spare_tokens: int) -> int:
    """Tokens that a rewritten region may have."""
    return int(len(tokenizer.encode(region)) * _ROOM_RATIO) + spare_tokens
