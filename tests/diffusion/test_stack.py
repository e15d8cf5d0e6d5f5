"""Canvases of several requests are decided in one pass as each of them alone."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from quicksilver.core import CommitRule, DecoderName, DecoderParams
from quicksilver.dialect import AUTOREGRESSIVE, ContextKind, Dialect
from quicksilver.diffusion.blocks import CanvasOrBlock
from quicksilver.diffusion.decoder import Canvas, Decision
from quicksilver.diffusion.decoders import joined, make_decoder
from quicksilver.diffusion.sample import Proposal
from quicksilver.diffusion.stack import Stack
from tests.support.proposals import proposal_of

BLOCK = Dialect(context=ContextKind.BLOCK, is_shifted=False, block_len=8, mask_id=9)
DIALECTS = {"canvas": AUTOREGRESSIVE, "block": BLOCK, "sub-blocks": replace(BLOCK, sub_block_len=4)}
DECODERS = [DecoderParams(DecoderName.CONFIDENCE, 8, rule, threshold=0.6, steps=3) for rule in CommitRule]
DECODERS.append(DecoderParams(DecoderName.EDIT, 8, threshold=0.6, edit_threshold=0.5, edit_passes=3))


def random_canvas(rng: random.Random) -> Canvas:
    count = rng.randrange(1, 9)
    return Canvas(
        np.array([rng.randrange(6) for _ in range(count)]),
        np.array([rng.random() < 0.6 for _ in range(count)]),
        np.array([rng.random() for _ in range(count)], np.float32),
        step=rng.randrange(5),
        num_passes=rng.randrange(4),
        num_fixed=8 - count,
        offset=8 - count,
    )


def random_proposal(rng: random.Random, count: int) -> Proposal:
    tokens = [rng.randrange(6) for _ in range(count)]
    return proposal_of(tokens, [rng.random() for _ in tokens], [0.3 * rng.random() for _ in tokens])


def as_lists(decision: Decision) -> tuple[object, ...]:
    canvas = decision.canvas
    if canvas is None:
        return (decision.commit, None)
    arrays = (canvas.token_ids.tolist(), canvas.is_masked.tolist(), canvas.confidence.tolist())
    counts = (canvas.step, canvas.num_passes, canvas.num_fixed, canvas.offset, decision.num_settled)
    return (decision.commit, arrays, counts)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("params", DECODERS, ids=lambda params: f"{params.name} {params.rule}")
def test_canvases_of_all_lengths_are_decided_together_as_alone(params: DecoderParams, dialect: Dialect) -> None:
    decoder, rng = make_decoder(params, dialect), random.Random(3)
    assert isinstance(decoder, CanvasOrBlock)
    for _ in range(20):
        canvases = [random_canvas(rng) for _ in range(7)]
        proposals = [random_proposal(rng, len(canvas.token_ids)) for canvas in canvases]
        together = decoder.decide_all(canvases, joined(proposals))
        alone = [decoder.decide(*one) for one in zip(canvases, proposals, strict=True)]
        assert list(map(as_lists, together)) == list(map(as_lists, alone))


def test_positions_after_a_shorter_canvas_are_neither_masked_nor_decided() -> None:
    short = replace(Canvas.blank(1), is_masked=np.array([False]))
    stack = Stack.of([Canvas.blank(3), short], proposal_of(range(4), [0.5] * 4, [0.0] * 4))
    assert stack.is_masked.tolist() == [[True, True, True], [False, False, False]]
    assert stack.num_decided() == [0, 1]
    assert stack.fill(stack.is_masked).token_ids.tolist() == [[0, 1, 2], [0, 0, 0]]
