"""On-policy proposals: the skilled model answers next-edit requests greedily, and each answer is judged."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.answers import AnswerDecoder, Asked
from quicksilver.training.proposals import EditPrompt, Proposal, judged
from quicksilver.training.recipe import Propose

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
