"""The choice of a decoder and its parameters, as an immutable record. `core` exports the names defined here.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from quicksilver.errors import InvalidRequest

_Name = TypeVar("_Name", bound=StrEnum)


class DecoderName(StrEnum):
    """Decoding algorithms."""

    AR = "ar"  # one token per forward: `verify` with a canvas of one token
    VERIFY = "verify"  # drafts a canvas, then verifies it as speculative decoding does
    CONFIDENCE = "confidence"  # unmasks the positions that a commit rule selects
    EDIT = "edit"  # as `confidence`, and may still change decided positions (LLaDA2.1)
    WINDOW = "window"  # a window of positions that moves with the text (WeDLM)
    CANVAS = "canvas"  # a canvas of random tokens that is denoised as a whole (DiffusionGemma)


class CommitRule(StrEnum):
    """How `confidence` chooses the positions to commit; the rules are defined in `diffusion/unmask.py`."""

    THRESHOLD = "threshold"  # every position whose probability reaches `threshold`, at least one
    STATIC = "static"  # the same number of positions in each of `steps` steps, the most confident first
    DYNAMIC = "dynamic"  # as `threshold`, but in each step at least as many as an even share of `steps` steps
    FACTOR = "factor"  # the largest n, most confident first, with (n + 1) * (1 - n-th confidence) <= `factor`
    ENTROPY = "entropy"  # positions in order of entropy while their sum stays below `entropy_bound`


def _member(kind: type[_Name], value: str, param: str) -> _Name:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(kind)
        raise InvalidRequest(f"unknown {param} {value!r}; the names are: {names}", param=param) from None


@dataclass(frozen=True, slots=True)
class DecoderParams:
    """A decoder and its parameters. A decoder ignores the fields of the others.

    `name` and `rule` may be given as strings, such as `"ar"`; an unknown one raises InvalidRequest.
    """

    name: DecoderName = DecoderName.VERIFY
    canvas_len: int = 16  # tokens predicted together

    # Parameters of `confidence`. `edit` also uses `threshold`, to fill masks.
    rule: CommitRule = CommitRule.THRESHOLD
    threshold: float = 0.9  # a masked position is decided if its confidence reaches this value
    steps: int = 8  # static and dynamic rule: forwards per canvas or block; `canvas`: the most forwards per canvas
    factor: float = 1.0  # factor rule
    entropy_bound: float = 0.1  # entropy rule, `window` and `canvas`: nats

    edit_threshold: float = 0.9  # `edit`: confidence above which a filled position is overwritten
    edit_passes: int = 16  # forwards allowed after the last mask is filled
    stutter_penalty: float = 2.0  # subtracted from the logit of the left neighbour's token, to avoid repeated words

    # Parameters of `canvas`.
    first_temperature: float = 0.8  # `canvas`: divides the logits of the first step; it falls linearly from there
    last_temperature: float = 0.4  # `canvas`: divides the logits of the last step
    stop_entropy: float = 0.005  # a canvas that did not change ends if its mean entropy is below; 0 never ends it

    def __post_init__(self) -> None:
        # Decoders are chosen by identity with an enum member, which a plain string does not have.
        object.__setattr__(self, "name", _member(DecoderName, self.name, "decoder"))
        object.__setattr__(self, "rule", _member(CommitRule, self.rule, "rule"))
