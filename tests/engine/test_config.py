"""Engine settings: refused by name where they cannot work, described by a help text, and the plan of KV pages."""

from __future__ import annotations

from dataclasses import fields

import pytest

from quicksilver.constrain.compile.pool import PoolConfig
from quicksilver.core import DecoderName, DecoderParams, help_texts
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.engine.config import (
    EngineConfig,
    fitting_adapter_bytes,
    plan_decode_rows,
    plan_pages,
    plan_prompt_rows,
    plan_running,
)
from quicksilver.engine.load import LoadConfig
from quicksilver.errors import InvalidRequest
from quicksilver.worker.client import WorkerTimeouts

MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tree_rows", 7),
        ("tree_rows", 64),
        ("matmul", "slow"),
        ("page_size", 0),
        ("max_score_rows", 0),
        ("max_running", -1),
        ("decode_rows", 511),
        ("compile_threads", -1),
    ],
)
def test_a_setting_that_cannot_work_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=name) as refused:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    assert refused.value.param == name


@pytest.mark.parametrize("rows", [-1, 0, 16, 32])
def test_trees_come_in_the_sizes_that_graphs_have(rows: int) -> None:
    assert EngineConfig(tree_rows=rows).tree_rows == rows


@pytest.mark.parametrize("config", [EngineConfig, LoadConfig, WorkerTimeouts, PoolConfig])
def test_every_setting_has_a_help_text_of_one_line(config: type) -> None:
    texts = help_texts(config)
    assert list(texts) == [one.name for one in fields(config)]
    assert all(text.endswith(".") and "\n" not in text and len(text) < 120 for text in texts.values())


def plan(free_mib: int, context_len: int = 1000, **settings: int) -> int:
    """Pages of 16 tokens of 1 KiB each."""
    return plan_pages(EngineConfig(**settings), context_len, 1024, free_mib * MIB)


def test_pages_take_half_of_the_free_memory() -> None:
    assert plan(free_mib=32) == 1024


def test_one_full_context_may_take_more_than_half() -> None:
    assert plan(free_mib=32, context_len=20_000) == -(-(20_000 + 32) // 16)


def test_a_context_that_does_not_fit_is_refused_with_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"context_len to 14713 or less.*fewer bits") as refused:
        plan(free_mib=16, context_len=20_000)
    assert refused.value.param == "context_len"
    assert plan(free_mib=16, context_len=14_700)


def test_kv_bytes_is_taken_as_given_and_refused_below_one_context() -> None:
    assert plan(free_mib=1, kv_bytes=32 * MIB) == 2048
    with pytest.raises(InvalidRequest, match="raise kv_bytes") as refused:
        plan(free_mib=999, kv_bytes=MIB // 2)
    assert refused.value.param == "kv_bytes"


@pytest.mark.parametrize(
    ("wanted", "free", "context", "fitting"),
    [
        (1024, 139_000, 100, 1024),
        (1024, 8000, 100, 500),
        (0, 8000, 100, 0),
        (1024, 8000, 6750, 500),
        (1024, 8000, 6751, 0),
    ],
)
def test_adapters_on_a_gpu_leave_room_for_one_context(wanted: int, free: int, context: int, fitting: int) -> None:
    assert fitting_adapter_bytes(wanted, free, context) == fitting


def test_num_pages_is_taken_as_given() -> None:
    assert plan(free_mib=1, num_pages=3) == 3


@pytest.mark.parametrize(("num_pages", "running"), [(200_000, 512), (20_000, 156), (100, 64)])
def test_running_requests_on_a_gpu_follow_its_memory(num_pages: int, running: int) -> None:
    assert plan_running(EngineConfig(), num_pages, is_cuda=True) == running
    assert plan_running(EngineConfig(), num_pages, is_cuda=False) == 64
    assert plan_running(EngineConfig(max_running=7), num_pages, is_cuda=True) == 7


NOISE = Dialect(noise_vocab=1000, default=DecoderParams(DecoderName.CANVAS, canvas_len=256))


@pytest.mark.parametrize(
    ("dialect", "rows"),
    [(NOISE, 2048), (Dialect(block_len=4), 1024), (Dialect(block_len=32), 8192), (AUTOREGRESSIVE, 512)],
)
def test_a_gpu_takes_many_canvases_in_one_forward(dialect: Dialect, rows: int) -> None:
    config = EngineConfig(max_running=256)
    assert plan_decode_rows(config, dialect, is_cuda=True) == rows
    assert plan_decode_rows(config, dialect, is_cuda=False) == 512
    assert plan_decode_rows(EngineConfig(max_rows=300), dialect, is_cuda=True) == 300
    assert plan_decode_rows(EngineConfig(decode_rows=600), dialect, is_cuda=True) == 600


@pytest.mark.parametrize("block_len", [4, 32])
def test_a_decoding_forward_with_kernels_fits_a_captured_graph(block_len: int) -> None:
    dialect = Dialect(block_len=block_len)
    rows = plan_decode_rows(EngineConfig(max_running=256), dialect, is_cuda=True, has_kernels=True)
    assert rows == EngineConfig(decode_rows=rows).for_backend(4096, "bfloat16").max_rows == 1024


def test_few_requests_need_fewer_rows() -> None:
    assert plan_decode_rows(EngineConfig(max_running=16), Dialect(block_len=32), is_cuda=True) == 1024


def test_only_cuda_kernels_take_a_long_prompt_at_once() -> None:
    assert plan_prompt_rows(EngineConfig(), has_kernels=True) == 8192
    assert plan_prompt_rows(EngineConfig(), has_kernels=False) == 512
    assert plan_prompt_rows(EngineConfig(matmul="batch_invariant"), has_kernels=True) == 512
