"""The bitmask table: its rows, what is sent, and its state after a grammar fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from quicksilver.backends.base import Sequence as EngineSequence
from quicksilver.backends.base import Work
from quicksilver.backends.cuda.bitmask_table import BitmaskTable
from quicksilver.core import Request
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import make_decoder
from quicksilver.diffusion.sample import unpack_bitmask
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params

VOCAB = 97


def work_of(constraint: Staircase | None, tail: Tail | None) -> Work:
    params = decode_params("verify", canvas_len=8)
    return Work(EngineSequence(Request("x", (1, 2), params), make_decoder(params.decoder), constraint), 0, 2, tail)


def canvas(*tokens: int | None) -> Tail:
    return Tail(tuple(token or 0 for token in tokens), tuple(token is None for token in tokens))


def allowed_tokens(table: BitmaskTable) -> list[list[int]]:
    """Allowed tokens per row, on the device."""
    return [row.nonzero()[:, 0].tolist() for row in unpack_bitmask(table.bits, VOCAB)]


def table_of(num_rows: int) -> BitmaskTable:
    return BitmaskTable(num_rows, VOCAB, torch.device("cpu"))


ANY = list(range(VOCAB))
FIRST, SECOND, THIRD = (Staircase().may_come(place) for place in range(3))


def test_rows_after_known_tokens_have_masks_and_rows_after_masks_are_free() -> None:
    table = table_of(10)
    table.write([work_of(None, canvas(None)), work_of(Staircase(), canvas(7, 8, None, 10))])
    assert allowed_tokens(table) == [ANY] * 10, "sent before `send`"
    table.send()
    assert allowed_tokens(table) == [ANY, ANY, FIRST, SECOND, THIRD, ANY, ANY, ANY, ANY, ANY]


def test_rows_after_an_illegal_token_are_free() -> None:
    table = table_of(4)
    table.write([work_of(Staircase(), Tail((7, 9, 9), (False,) * 3, is_causal=True))])
    table.send()
    assert allowed_tokens(table) == [FIRST, SECOND, ANY, ANY]


def test_a_block_without_masks_writes_no_row_of_the_next_request() -> None:
    """Its rows propose their own positions, so it has as many proposals as known tokens."""
    table = table_of(4)
    filled = Tail((7, 8), (False, False), proposing=(1, 3))
    table.write([work_of(Staircase(), filled), work_of(Staircase(), canvas(None))])
    table.send()
    assert allowed_tokens(table) == [FIRST, SECOND, FIRST, ANY]


def test_rows_of_a_new_request_keep_no_old_mask() -> None:
    table = table_of(6)
    drafted = Tail((7, 8), (False, False), is_causal=True)
    table.write([work_of(Staircase(), drafted), work_of(Staircase(), drafted)])
    table.send()
    table.write([work_of(None, drafted), work_of(Staircase(), None), work_of(Staircase(), canvas(None))])
    table.send()
    # The last row belongs to no request now.
    assert allowed_tokens(table) == [ANY, ANY, ANY, FIRST, ANY, THIRD]


def test_only_rows_that_changed_are_sent_again() -> None:
    table = table_of(6)
    works = [work_of(None, canvas(None, None)), work_of(Staircase(), canvas(None)), work_of(None, None)]
    table.write(works)
    table.send()
    table.bits.zero_()
    table.write(works)
    table.send()
    assert allowed_tokens(table) == [[], [], [], FIRST, [], []]


def test_a_grammar_that_raises_leaves_a_table_that_can_be_written_again() -> None:
    class Broken(Staircase):
        def write_masks(self, ahead: Sequence[int], out: memoryview) -> int:
            super().write_masks(ahead, out)
            raise RuntimeError("broken")

    table, drafted = table_of(6), Tail((7, 8), (False, False), is_causal=True)
    with pytest.raises(RuntimeError, match="broken"):
        table.write([work_of(Staircase(), drafted), work_of(Broken(), drafted)])
    table.write([work_of(None, drafted), work_of(Staircase(), canvas(None, None))])
    table.send()
    assert allowed_tokens(table) == [ANY, ANY, ANY, FIRST, ANY, ANY]
