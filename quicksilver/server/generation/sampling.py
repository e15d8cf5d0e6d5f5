"""Wire fields -> core.DecodeParams. An absent field keeps the default; what a decoder cannot do is refused."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, EngineInfo
from quicksilver.errors import InvalidRequest
from quicksilver.server.http.fields import DecoderBody

REALTIME_CANVAS_LEN = 8
"""Small canvases commit their first token sooner."""


def overlay(defaults: DecodeParams, given: Mapping[str, Any]) -> DecodeParams:
    """`defaults` with the fields that were given; None is the same as absent."""
    return replace(defaults, **{name: value for name, value in given.items() if value is not None})


def pick_seed(seed: int | None) -> int:
    """The caller's seed, or one nobody can foretell."""
    return secrets.randbelow(2**53) if seed is None else seed


def pick_top_k(top_k: int | None) -> int | None:
    """-1 and 0 both keep every token."""
    return None if top_k is None else max(top_k, 0)


def pick_bias(bias: Mapping[str, float] | None, info: EngineInfo) -> dict[int, float] | None:
    """Ids are checked against the width of the logits, so that no request can reach beyond them."""
    if bias is None:
        return None
    by_id = {int(token): value for token, value in bias.items()}
    if by_id and max(by_id) >= info.vocab_size:
        raise InvalidRequest(f"logit_bias: token ids end at {info.vocab_size - 1}", param="logit_bias")
    return by_id


def pick_stop_ids(ids: Sequence[int] | None, info: EngineInfo) -> tuple[int, ...] | None:
    if ids and max(ids) >= info.vocab_size:
        raise InvalidRequest(f"stop_ids: token ids end at {info.vocab_size - 1}", param="stop_ids")
    return None if ids is None else tuple(ids)


def pick_decoder(body: DecoderBody | None, *, is_realtime: bool, info: EngineInfo) -> DecoderParams:
    defaults = DecoderParams(canvas_len=REALTIME_CANVAS_LEN) if is_realtime else DecoderParams()
    defaults = replace(defaults, canvas_len=min(defaults.canvas_len, info.max_canvas_len))
    if body is None:
        return defaults
    given = body.model_dump(exclude_none=True)
    if "name" in given:
        given["name"] = DecoderName(given["name"])
    if "rule" in given:
        given["rule"] = CommitRule(given["rule"])
    if given.get("canvas_len", 1) > info.max_canvas_len:
        raise InvalidRequest(f"decoder.canvas_len: at most {info.max_canvas_len} here", param="decoder.canvas_len")
    return replace(defaults, **given)
