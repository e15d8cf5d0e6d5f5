"""The memory for adapters on the device: pages, eviction, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.adapters import AdapterRef
from quicksilver.backends.base import Sequence, Work
from quicksilver.backends.batch import build_batch
from quicksilver.backends.cuda.adapter_table import AdapterTable, page_bytes
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.diffusion.verify import Verify
from quicksilver.errors import CheckpointRefused, EngineUnavailable
from quicksilver.model.attention import PagedCache
from quicksilver.model.row_adapters import MAX_RANK, convert
from tests.support.adapter_checks import adapter_engine, answers_of, limits_of
from tests.support.graph_checks import TINIEST_PLAIN, model_of
from tests.support.kernel_checks import here
from tests.support.row_adapters import random_adapter, saved

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
CONFIG = TINIEST_PLAIN
PARAMS = DecodeParams(3, decoder=DecoderParams(DecoderName.AR, 1))


def table_of(num_pages: int) -> AdapterTable:
    return AdapterTable(CONFIG, num_pages, torch.device(here().device), here().dtype)


def test_an_adapter_takes_the_pages_of_its_largest_rank_and_gives_them_back() -> None:
    table = table_of(5)
    with_canvas = random_adapter(1, rank=16, config=CONFIG)
    with_canvas.canvas = random_adapter(2, rank=1, config=CONFIG)
    adapters = [table.convert(one) for one in (random_adapter(3, rank=17, config=CONFIG), with_canvas)]
    # The stack of both pairs has 17 ranks.
    assert [one.num_bytes // page_bytes(CONFIG, here().dtype) for one in adapters] == [2, 3]
    for _ in range(3):
        placed = [table.convert(one) for one in (random_adapter(3, rank=17, config=CONFIG), with_canvas)]
        for one in placed:
            table.place(one)
        assert len({table.slot_of(one) for one in (placed[0], placed[1], placed[1].canvas)}) == 3
        for one in placed:
            table.drop(one)


def test_a_pair_in_pages_equals_the_pair(tmp_path: Path) -> None:
    table, adapter = table_of(3), random_adapter(4, rank=20, config=CONFIG, std=0.1)
    del adapter.layers[0]["o"]
    found, wanted = table.convert(adapter), convert(CONFIG, adapter, lambda pair: pair, "cpu")
    table.place(found)
    x = torch.randn(3, CONFIG.dim).to(here().device, here().dtype)
    assert found.layers[0].keys() == wanted.layers[0].keys() == {"qkv", "gu", "dn"}
    with torch.inference_mode():
        torch.testing.assert_close(
            found.layers[0]["gu"].delta(x).float().cpu(),
            wanted.layers[0]["gu"].delta(x.float().cpu()),
            atol=0.05 if here().device == "cuda" else 1e-5,
            rtol=0.05 if here().device == "cuda" else 1e-5,
        )


def test_what_does_not_fit_is_refused_by_name() -> None:
    table = table_of(2)
    with pytest.raises(CheckpointRefused, match=r"layer 0 qkv has rank 33.*holds a rank of 32; raise adapter_bytes"):
        table.convert(random_adapter(1, rank=33, config=CONFIG))
    stacked = random_adapter(1, rank=MAX_RANK, config=CONFIG)
    stacked.canvas = random_adapter(1, rank=1, config=CONFIG)
    with pytest.raises(CheckpointRefused, match=f"rank {MAX_RANK + 1} with its pairs for canvas rows"):
        table_of(MAX_RANK // 16 + 1).convert(stacked)
    with pytest.raises(CheckpointRefused, match="replaces token embeddings"):
        table.convert(random_adapter(1, rank=4, config=CONFIG, embedding_ids=(3,)))


@torch.inference_mode()
def test_an_evicted_adapter_is_loaded_again_into_other_pages_with_the_same_answers(tmp_path: Path) -> None:
    """Memory for two of three adapters; a fourth one cannot be loaded while two are in use."""
    refs = [saved(tmp_path, random_adapter(i, rank=16, config=CONFIG, std=0.1), str(i)) for i in range(3)]
    engine, roomy = (adapter_engine(model_of(CONFIG), num_pages) for num_pages in (2, 3))

    def answer(engine_, ref: AdapterRef) -> list[int]:  # type: ignore[no-untyped-def]
        return answers_of(engine_, [Request("x", (1, 2, 3), PARAMS, adapter=ref)])["x"]

    wanted = [answer(roomy, ref) for ref in refs]
    assert len({tuple(tokens) for tokens in wanted}) == 3
    for choice in (0, 1, 2, 0):
        assert answer(engine, refs[choice]) == wanted[choice]
        assert len(engine.adapters.list()) <= 2
    leases = [engine.adapters.lease(ref) for ref in refs[:2]]
    with pytest.raises(EngineUnavailable, match="retry"):
        engine.adapters.lease(refs[2])
    del leases


@torch.inference_mode()
def test_an_adapter_that_was_trained_again_meets_no_page_of_the_old_one(tmp_path: Path) -> None:
    """The same name, path, prompt and tenant: only KV pages of the same weights are shared."""
    engine, prompt = adapter_engine(model_of(CONFIG), 4), tuple(range(20))
    cached, texts = [], []
    for seed in (1, 1, 2, 0):
        ref = saved(tmp_path, random_adapter(seed, rank=4, config=CONFIG, std=0.1)) if seed else None
        engine.add(Request("x", prompt, PARAMS, adapter=ref))
        tokens = []
        while engine.has_work:
            for event in engine.step():
                tokens += event.token_ids  # type: ignore[union-attr]
                usage = event.usage  # type: ignore[union-attr]
        cached.append(usage.cached_tokens)
        texts.append(tokens)
    assert cached[0] == cached[2] == cached[3] == 0
    assert cached[1] > 0, "the same weights share pages"
    assert texts[0] == texts[1] != texts[2]


@torch.inference_mode()
def test_a_batch_that_exceeds_the_buffers_applies_adapters_in_plain_torch() -> None:
    """The same batch on the kernels, and with buffers that are too small for it."""
    model, place = model_of(CONFIG), here()
    adapter = random_adapter(1, rank=20, config=CONFIG, std=0.1)
    found = []
    for max_rows in (32, 16):
        cache = PagedCache.allocate(CONFIG, 16, 16, place.device, place.dtype)
        executor = GraphExecutor(model, cache, 64, limits_of(CONFIG, place.dtype, 2, max_rows=max_rows))
        placed = executor.convert_adapter(adapter)
        executor.adapters.table.place(placed)  # type: ignore[union-attr]
        request = Request("x", tuple(range(20)), PARAMS)
        sequence = Sequence(request, Verify(DecoderParams(canvas_len=4)), adapter=placed, pages=[1, 2])
        sequence.open_canvas()
        works = [Work(sequence, 0, 20, sequence.tail)]
        assert executor._holds(build_batch(works, 16)) == (max_rows == 32)
        outcome = executor.run(works)[0]
        assert outcome is not None
        found.append((outcome.proposal.token_ids.tolist(), outcome.proposal.confidence))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-2, rtol=1e-2)
