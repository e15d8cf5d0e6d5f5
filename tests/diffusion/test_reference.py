"""The reference loop on a scripted model. `tests/engine/test_equal_reference.py` compares the engine with it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from quicksilver.core import DecoderName
from quicksilver.dialect import Dialect
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.reference import generate
from quicksilver.diffusion.sample import sample_rows
from tests.support.tiny import decode_params

VOCAB_SIZE = 50


def count_up(context: Sequence[int], tail: Tail) -> Tensor:
    """A model that is certain that each token is the previous one plus one. Rows are in the order of the positions."""
    logits = torch.zeros(tail.num_proposals, VOCAB_SIZE)
    for row in range(len(logits)):
        logits[row, (context[-1] + 1 + row) % VOCAB_SIZE] = 20.0
    return logits


def write(name: DecoderName, **changes: object) -> list[int]:
    params = decode_params(name, canvas_len=4, max_new_tokens=10, **changes)
    if name is not DecoderName.CANVAS:
        return generate(count_up, [1, 2, 3], params)
    return generate(count_up, [1, 2, 3], params, Dialect(noise_vocab=VOCAB_SIZE), lambda logits: logits)


@pytest.mark.parametrize("name", DecoderName)
def test_every_decoder_writes_what_the_model_is_certain_of(name: DecoderName) -> None:
    assert write(name) == list(range(4, 14))


@pytest.mark.parametrize("name", DecoderName)
def test_a_stop_token_ends_the_answer_and_is_not_part_of_it(name: DecoderName) -> None:
    assert write(name, stop_ids=(7,)) == [4, 5, 6]


def test_verify_needs_two_forwards_per_round_of_an_accepted_draft() -> None:
    calls = list[int]()

    def counted(context: Sequence[int], tail: Tail) -> Tensor:
        calls.append(len(tail.token_ids))
        return count_up(context, tail)

    generate(counted, [1], decode_params("verify", canvas_len=4, max_new_tokens=10))
    # Draft forwards have 3 mask rows and verify forwards 3 causal rows; a round commits 1 + 3 + 1 tokens.
    assert calls == [3, 3, 3, 3]


def test_rows_of_a_request_share_settings_and_have_their_own_positions() -> None:
    rows = sample_rows([decode_params("ar", temperature=0.5, top_k=3, seed=9)], [7], [3], [2])
    assert rows.positions.tolist() == [7, 8, 9]
    assert (rows.temperature.tolist(), rows.top_k.tolist()) == ([0.5] * 3, [3] * 3)
    assert (rows.seeds.tolist(), rows.steps.tolist()) == ([9] * 3, [2] * 3)
