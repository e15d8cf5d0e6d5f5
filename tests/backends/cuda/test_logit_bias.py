"""Which requests the fused head answers and in which kind; what becomes of a bias in its tables."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from quicksilver.backends.cuda.logit_bias import (
    HEAD_KINDS,
    MASKED_KINDS,
    MAX_KINDS,
    NUM_BIAS,
    BiasTable,
    HeadKind,
    bias_of,
    is_fused,
    is_plain,
    kind_of,
)
from quicksilver.core import DecodeParams
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params


def work_of(params: DecodeParams, constraint: Staircase | None = None) -> SimpleNamespace:
    """As much of a Work as wishes are read from."""
    request = SimpleNamespace(params=params)
    return SimpleNamespace(sequence=SimpleNamespace(request=request, decoder=None, constraint=constraint))


@pytest.mark.parametrize(
    "wishes",
    [
        {"logit_bias": dict.fromkeys(range(NUM_BIAS), 1.0)},
        {"banned_ids": tuple(range(NUM_BIAS))},
        {"banned_ids": (1, 2, 2), "logit_bias": dict.fromkeys(range(NUM_BIAS), 1.0)},
        {"banned_ids": (1,), "temperature": 0.7},
    ],
)
def test_a_bias_that_fits_the_table_is_plain(wishes: dict[str, object]) -> None:
    work = work_of(decode_params("verify", **wishes))
    assert is_plain(work)  # type: ignore[arg-type]
    assert kind_of([work]).is_biased  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wishes",
    [
        {"logit_bias": dict.fromkeys(range(NUM_BIAS + 1), 1.0)},
        {"banned_ids": tuple(range(NUM_BIAS)), "logit_bias": {NUM_BIAS: 1.0}},
        {"banned_ids": (1,), "frequency_penalty": 0.5},
        {"banned_ids": (1,), "temperature": 0.7, "top_p": 0.9},
    ],
)
def test_more_bias_and_other_wishes_are_not_plain(wishes: dict[str, object]) -> None:
    assert not is_plain(work_of(decode_params("verify", **wishes)))  # type: ignore[arg-type]


def test_one_request_with_a_wish_decides_the_kind_of_all() -> None:
    works = [decode_params("ar"), decode_params("ar", temperature=1.0), decode_params("ar", logit_bias={3: 1.0})]
    kinds = [kind_of([work_of(params) for params in works[:count]]) for count in (1, 2, 3)]  # type: ignore[misc]
    assert kinds == [HeadKind(), HeadKind(is_drawn=True), HeadKind(is_drawn=True, is_biased=True)]
    assert set(kinds) < set(HEAD_KINDS)


def test_the_fused_head_takes_grammars_and_rounds_do_not() -> None:
    for temperature in (0.0, 0.7):
        work = work_of(decode_params("verify", temperature=temperature), Staircase())
        assert is_fused(work)  # type: ignore[arg-type]
        assert not is_plain(work)  # type: ignore[arg-type]
        kind = kind_of([work_of(decode_params("ar")), work])  # type: ignore[list-item]
        assert kind == HeadKind(temperature > 0, is_biased=True, is_masked=True)
        assert kind in MASKED_KINDS
    assert not any(kind.is_masked for kind in HEAD_KINDS), "rounds capture these"


@pytest.mark.parametrize(
    "wishes",
    [
        {"logprobs": 0},
        {"repetition_penalty": 1.1},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.7, "min_p": 0.1},
    ],
)
def test_a_grammar_with_a_rare_wish_goes_the_plain_way(wishes: dict[str, object]) -> None:
    assert not is_fused(work_of(decode_params("verify", **wishes), Staircase()))  # type: ignore[arg-type]
    assert not is_fused(work_of(decode_params("edit"), Staircase()))  # type: ignore[arg-type]


def test_a_ban_outweighs_a_bias() -> None:
    assert bias_of(decode_params("ar", banned_ids=(4, 5), logit_bias={5: 9.0, 6: 1.0})) == {
        5: -math.inf,
        6: 1.0,
        4: -math.inf,
    }


def test_rows_that_change_hands_keep_no_bias() -> None:
    table = BiasTable(4, 8, 64, torch.device("cpu"))
    table.write(slice(0, 3), decode_params("ar", banned_ids=(7, 8)))
    table.write(slice(1, 2), decode_params("ar", logit_bias={9: 2.5}))
    table.write(slice(3, 4), decode_params("ar", logit_bias={128: 1.0}))
    table.send()
    assert table.tiles.tolist() == [2, 0, 1, 0, 0, 0, 0, 0]
    table.write(slice(3, 4), decode_params("ar"))
    table.write(slice(2, 3), decode_params("ar"))
    assert table.ids[0].tolist() == [7, 9, 7, 128], "sent before `send`"
    table.send()
    assert [[i for i in row if i >= 0] for row in table.ids.T.tolist()] == [[7, 8], [9], [], []]
    assert table.tiles.tolist() == [2] + [0] * 7
    assert table.values[0, 1].item() == 2.5
    assert table.values[:2, 0].tolist() == [-math.inf] * 2


def test_a_bias_that_a_row_already_has_is_not_written_again() -> None:
    table = BiasTable(4, 8, 64, torch.device("cpu"))
    for _ in range(2):
        table.write(slice(0, 2), decode_params("ar", banned_ids=(7, 8)))
        table.send()
        table._rows_of_ids[0, 0] = 3  # what stands there shows whether it was written again
    assert table.ids[0].tolist() == [7, 7, -1, -1]
    assert table._rows_of_ids[0].tolist() == [3, 7, -1, -1]
    table.write(slice(0, 2), decode_params("ar", logit_bias={9: 1.0}))
    table.send()
    assert table.ids[:2, 0].tolist() == [9, -1]


def test_more_biases_than_a_table_remembers_are_written_all_the_same() -> None:
    table = BiasTable(2, 64, 64, torch.device("cpu"))
    for token in (*range(MAX_KINDS + 3), 1, MAX_KINDS + 2):
        table.write(slice(0, 1), decode_params("ar", logit_bias={token: 1.0}))
        table.send()
        assert table.ids[:2, 0].tolist() == [token, -1]
