"""Block rounds: rows and decisions on the device are those of the host, and so are the texts."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from dataclasses import replace
from pathlib import Path

from quicksilver.backends.cuda import block_rounds
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.block_rounds import has_rounds, round_size
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.core import DecoderName, DecoderParams, Request
from tests.support.adapter_checks import adapter_engine, adapters_for, answers_of
from tests.support.block_checks import (
    BLOCK,
    RULES,
    SHIFTED,
    CountingRounds,
    block_engine,
    check_decisions,
    check_rounds,
    check_rows,
    run_all,
)
from tests.support.dialect_graph_checks import dialect_on_graphs
from tests.support.dialects import tiny_dialect
from tests.support.graph_checks import TINIEST
from tests.support.tiny import decode_params

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("sub_block_len", [0, 4])
@pytest.mark.parametrize("params", RULES, ids=lambda params: f"{params.name} {params.rule}")
def test_the_device_decides_as_the_decoder(params: DecoderParams, sub_block_len: int) -> None:
    check_decisions(params, replace(BLOCK, sub_block_len=sub_block_len), seed=1)


@pytest.mark.parametrize("params", [one for one in RULES if one.name is DecoderName.CONFIDENCE], ids=lambda p: p.rule)
def test_the_first_position_of_a_block_is_decided_alone_where_rows_predict_the_next_one(params: DecoderParams) -> None:
    check_decisions(params, replace(SHIFTED, sub_block_len=4), seed=2)


@pytest.mark.parametrize(("block_len", "capacity", "tile_rows"), [(4, 4, 16), (6, 2, 8), (4, 1, 16)])
def test_rows_are_those_of_the_batch(block_len: int, capacity: int, tile_rows: int) -> None:
    """With room for one block the second one has no rows, and its sequence is marked."""
    check_rows(replace(BLOCK, block_len=block_len), capacity, tile_rows)


def test_texts_are_those_of_ordinary_forwards() -> None:
    """One request after the other, of all rules, with stop tokens and answers that end inside a block."""
    shared = {"max_new_tokens": 10, "threshold": 0.05}
    options = [
        decode_params("confidence", **shared),
        decode_params("confidence", **shared, temperature=0.8),
        decode_params("confidence", rule="static", steps=2, max_new_tokens=11, stop_ids=(3, 17)),
        decode_params("confidence", rule="dynamic", steps=3, banned_ids=(5,), logit_bias={7: 1.0}, **shared),
    ]
    with torch.inference_mode():
        check_rounds(dialect_on_graphs("sdar", TINIEST), options, [5, 4, 9, 3], max_sequences=1)


def test_edits_and_shifted_blocks_have_the_texts_of_ordinary_forwards() -> None:
    edit = {"threshold": 0.05, "edit_threshold": 0.03, "edit_passes": 3, "stutter_penalty": 0.0}
    with torch.inference_mode():
        model = dialect_on_graphs("sdar", TINIEST)
        check_rounds(model, [decode_params("edit", max_new_tokens=10, **edit)], [5, 8], max_sequences=2)
        shifted = dialect_on_graphs("fast-dllm-v2", TINIEST)
        check_rounds(shifted, [decode_params("confidence", max_new_tokens=19, threshold=0.05)], [5, 8], 2)


def test_requests_that_join_and_leave_have_their_tokens() -> None:
    options = [decode_params("confidence", threshold=0.05, max_new_tokens=count) for count in (9, 17)]
    with torch.inference_mode():
        check_rounds(dialect_on_graphs("sdar", TINIEST), options, [5, 8, 2], max_sequences=4)


def test_blocks_for_which_a_round_has_no_rows_are_written_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four requests complete their blocks together, in rounds that first have room for two."""
    monkeypatch.setattr(block_rounds, "FREE_ROWS", 8)
    monkeypatch.setattr(block_rounds, "ROW_STEP", 16)
    options = [decode_params("confidence", rule="static", steps=2, max_new_tokens=20)]
    with torch.inference_mode():
        assert block_rounds.capacities(4, 4)[0] == 2
        check_rounds(dialect_on_graphs("sdar", TINIEST), options, [5, 5, 5, 5], max_sequences=4, at_once=4)


@pytest.mark.parametrize("prompt_len", [5, 8])
def test_requests_with_adapters_run_in_ordinary_forwards(tmp_path: Path, prompt_len: int) -> None:
    """Rounds have no kernels for row adapters."""
    made = list[CountingRounds]()

    class WithRounds(CudaBackend):
        def __init__(self, executor: GraphExecutor) -> None:
            super().__init__(executor)
            made.append(CountingRounds(executor, 4))
            self.blocks = made[0]

    with torch.inference_mode():
        model = dialect_on_graphs("sdar", TINIEST)
        ref = adapters_for(model.config, tmp_path)[1]
        params = decode_params("confidence", threshold=0.05, max_new_tokens=9)
        prompt = tuple(range(1, 1 + prompt_len))
        requests = [Request(name, prompt, params, adapter=one) for name, one in (("0", ref), ("1", None))]
        expected = answers_of(adapter_engine(model, 8), requests)
        assert expected["0"] != expected["1"], "the adapter changes nothing"
        engine = adapter_engine(model, 8, make=WithRounds)
        assert answers_of(engine, requests) == expected
        assert not made[0].num_read
        assert answers_of(engine, requests[1:]) == {"1": expected["1"]}
        assert made[0].num_read


def test_other_requests_run_in_ordinary_forwards() -> None:
    with torch.inference_mode():
        model = dialect_on_graphs("sdar", TINIEST)
        engine, rounds = block_engine(model, max_sequences=2)
        assert rounds is not None
        for one in (
            decode_params("confidence", max_new_tokens=3, rule="factor"),
            decode_params("confidence", max_new_tokens=3, logprobs=1),
            decode_params("edit", max_new_tokens=3),
        ):
            run_all(engine, [Request("0", (1, 2, 3), one)])
        assert rounds.num_read == 0


@pytest.mark.parametrize(
    ("block_len", "streams", "is_used"),
    [(4, 1, True), (4, 9, True), (4, 33, False), (4, 48, True), (4, 100, True), (32, 2, True), (32, 4, True),
     (32, 5, False), (32, 8, True), (32, 17, False)],
)  # fmt: skip
def test_a_round_has_no_more_rows_than_an_ordinary_forward_if_rows_cost_time(
    block_len: int, streams: int, is_used: bool
) -> None:
    assert (round_size(block_len, streams, [1, 2, 4, 8, 16, 32, 64, 128]) > 0) == is_used


def test_dialects_with_rounds() -> None:
    names = ("sdar", "stable-diffcoder", "fast-dllm-v2", "nemotron-labs-diffusion", "i-dlm", "wedlm-8b", "dream")
    assert [name for name in names if has_rounds(tiny_dialect(name))] == ["sdar", "stable-diffcoder", "fast-dllm-v2"]
