"""Logit bias, bans, penalties and bitmasks change exactly the logits that they name."""

from __future__ import annotations

import torch

from quicksilver.core import DecodeParams
from quicksilver.diffusion.logit_processing import LogitContext, process_logits, unpack_bitmask
from tests.support.tiny import decode_params

LOGITS = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])


def test_bias_bans_and_penalties_change_only_what_they_name() -> None:
    params = decode_params(
        "verify", logit_bias={4: 9.0}, banned_ids=(0,), presence_penalty=1.0, frequency_penalty=0.5,
    )  # fmt: skip
    logits = LOGITS.repeat(2, 1).clone()
    process_logits(logits, LogitContext(params, prompt=[3], generated=[1, 1], known=[2]))
    assert logits[0].tolist() == [-torch.inf, 2.0 - 2.0, 1.0, 0.0, 8.0]
    assert logits[1].tolist() == [-torch.inf, 0.0, 1.0 - 1.5, 0.0, 8.0]


def test_repetition_penalty_sees_the_prompt_and_shrinks_towards_zero_from_both_sides() -> None:
    params = decode_params("verify", repetition_penalty=2.0)
    logits = LOGITS.clone()
    process_logits(logits, LogitContext(params, prompt=[0, 4], generated=[]))
    assert logits[0].tolist() == [1.5, 2.0, 1.0, 0.0, -2.0]


def test_a_bitmask_allows_exactly_its_bits() -> None:
    bitmask = torch.tensor([[0b10010, 0]], dtype=torch.int32)
    assert unpack_bitmask(bitmask, 40)[0].nonzero()[:, 0].tolist() == [1, 4]
    high = torch.tensor([[-(2**31)]], dtype=torch.int32)
    assert unpack_bitmask(high, 32)[0].nonzero()[:, 0].tolist() == [31]
    logits = LOGITS.repeat(2, 1).clone()
    process_logits(logits, LogitContext(DecodeParams(), [], [], bitmask=bitmask))
    assert logits[0].isfinite().tolist() == [False, True, False, False, True]
    assert bool(logits[1].isfinite().all())


def test_the_stutter_penalty_lowers_the_left_neighbour_of_each_row() -> None:
    params = decode_params("edit", stutter_penalty=2.5)
    logits = LOGITS.repeat(3, 1).clone()
    process_logits(logits, LogitContext(params, [], [], left_neighbours=[1, -1, 0]))
    assert logits.tolist() == [[3.0, -0.5, 1.0, 0.0, -1.0], [3.0, 2.0, 1.0, 0.0, -1.0], [0.5, 2.0, 1.0, 0.0, -1.0]]
