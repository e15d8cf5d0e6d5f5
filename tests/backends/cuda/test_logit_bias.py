"""Requests that the fused head can serve, their sampling options, and the bias table."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from quicksilver.backends.cuda.logit_bias import (
    MASKED_OPTIONS,
    MAX_BIASES,
    NUM_BIAS,
    UNMASKED_OPTIONS,
    BiasTable,
    SamplingOptions,
    bias_of,
    fits_fused_head,
    fits_rounds,
    options_of,
)
from quicksilver.core import DecodeParams
from tests.support.staircase import Staircase
from tests.support.tiny import decode_params


def work_of(params: DecodeParams, constraint: Staircase | None = None) -> SimpleNamespace:
    """The part of a Work that sampling options depend on."""
    request = SimpleNamespace(params=params)
    sequence = SimpleNamespace(request=request, decoder=None, constraint=constraint, fits_fused_head=None)
    return SimpleNamespace(sequence=sequence)


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": dict.fromkeys(range(NUM_BIAS), 1.0)},
        {"banned_ids": tuple(range(NUM_BIAS))},
        {"banned_ids": (1, 2, 2), "logit_bias": dict.fromkeys(range(NUM_BIAS), 1.0)},
        {"banned_ids": (1,), "temperature": 0.7},
    ],
)
def test_a_bias_that_fits_the_table_runs_in_rounds(options: dict[str, object]) -> None:
    work = work_of(decode_params("verify", **options))
    assert fits_rounds(work)  # type: ignore[arg-type]
    assert options_of([work]).is_biased  # type: ignore[list-item]


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": dict.fromkeys(range(NUM_BIAS + 1), 1.0)},
        {"banned_ids": tuple(range(NUM_BIAS)), "logit_bias": {NUM_BIAS: 1.0}},
        {"banned_ids": (1,), "frequency_penalty": 0.5},
        {"banned_ids": (1,), "temperature": 0.7, "top_p": 0.9},
    ],
)
def test_a_larger_bias_and_rare_options_do_not_run_in_rounds(options: dict[str, object]) -> None:
    assert not fits_rounds(work_of(decode_params("verify", **options)))  # type: ignore[arg-type]


def test_options_of_one_request_apply_to_the_whole_batch() -> None:
    works = [decode_params("ar"), decode_params("ar", temperature=1.0), decode_params("ar", logit_bias={3: 1.0})]
    seen = [options_of([work_of(params) for params in works[:count]]) for count in (1, 2, 3)]  # type: ignore[misc]
    assert seen == [
        SamplingOptions(),
        SamplingOptions(is_sampled=True),
        SamplingOptions(is_sampled=True, is_biased=True),
    ]
    assert set(seen) < set(UNMASKED_OPTIONS)


def test_the_fused_head_supports_grammars_and_rounds_do_not() -> None:
    for temperature in (0.0, 0.7):
        work = work_of(decode_params("verify", temperature=temperature), Staircase())
        assert fits_fused_head(work.sequence)
        assert not fits_rounds(work)  # type: ignore[arg-type]
        options = options_of([work_of(decode_params("ar")), work])  # type: ignore[list-item]
        assert options == SamplingOptions(temperature > 0, is_biased=True, is_masked=True)
        assert options in MASKED_OPTIONS
    assert not any(options.is_masked for options in UNMASKED_OPTIONS), "rounds capture these"


@pytest.mark.parametrize(
    "options",
    [
        {"logprobs": 0},
        {"repetition_penalty": 1.1},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.7, "min_p": 0.1},
    ],
)
def test_a_grammar_with_rare_options_takes_the_eager_path(options: dict[str, object]) -> None:
    assert not fits_fused_head(work_of(decode_params("verify", **options), Staircase()).sequence)
    assert not fits_fused_head(work_of(decode_params("edit"), Staircase()).sequence)


def test_a_ban_takes_precedence_over_a_bias() -> None:
    assert bias_of(decode_params("ar", banned_ids=(4, 5), logit_bias={5: 9.0, 6: 1.0})) == {
        5: -math.inf,
        6: 1.0,
        4: -math.inf,
    }


def test_rows_of_a_new_request_keep_no_old_bias() -> None:
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


def test_an_unchanged_bias_is_not_written_again() -> None:
    table = BiasTable(4, 8, 64, torch.device("cpu"))
    for _ in range(2):
        table.write(slice(0, 2), decode_params("ar", banned_ids=(7, 8)))
        table.send()
        table._ids[0, 0] = 3  # a marker that another write would overwrite
    assert table.ids[0].tolist() == [7, 7, -1, -1]
    assert table._ids[0].tolist() == [3, 7, -1, -1]
    table.write(slice(0, 2), decode_params("ar", logit_bias={9: 1.0}))
    table.send()
    assert table.ids[:2, 0].tolist() == [9, -1]


def test_more_distinct_biases_than_the_table_numbers_are_written_correctly() -> None:
    table = BiasTable(2, 64, 64, torch.device("cpu"))
    for token in (*range(MAX_BIASES + 3), 1, MAX_BIASES + 2):
        table.write(slice(0, 1), decode_params("ar", logit_bias={token: 1.0}))
        table.send()
        assert table.ids[:2, 0].tolist() == [token, -1]
