"""The compiled forward: equal to torch up to rounding, and batch-invariant."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.attention import PagedCache, RowPlan, SdpaAttend, Segment
from quicksilver.model.families import FAMILIES
from quicksilver.model.lowrank import LowRank, LowRankModules
from quicksilver.model.row_adapters import AdapterRows, Pair, RowAdapter, convert
from quicksilver.model.transformer import Transformer
from tests.backends.cpu.build import by_slot
from tests.model.build import PAGE_SIZE, causal_plan, random_model, small_config, token_ids
from tests.support.canvas_adapters import new_canvas
from tests.support.row_adapters import random_adapter

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.network import CompiledNetwork, is_supported, row_blocks
from quicksilver.backends.cpu.quantise import quantise_linear
from tests.support.quantised import quantise_model

SHAPES = {16: {}, 64: {"head_dim": 64, "num_heads": 6, "num_kv_heads": 2}, 128: {"head_dim": 128, "dim": 100}}


def int8_model(family: str = "llama", head_dim: int = 16) -> Transformer:
    model = random_model(small_config(family, **SHAPES[head_dim]))
    adapter = new_canvas(model.config, rank=5, max_canvas_len=8, seed=0)
    for parameter in adapter.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    attach_canvas(model, adapter)
    return quantise_model(model).requires_grad_(False)


def new_cache(model: Transformer, num_pages: int = 16) -> PagedCache:
    return PagedCache.allocate(model.config, num_pages, PAGE_SIZE, "cpu", torch.float16)


def canvas_plan(start: int, num_rows: int, pages: torch.Tensor) -> RowPlan:
    """The last committed token at `start`, causal, and a canvas of masks after it."""
    plan = causal_plan([torch.arange(start, start + num_rows)], [pages])
    plan.slots[1:] = -1
    plan.prefix_end[1:] = start + 1
    plan.span_start[1:], plan.span_end[1:] = 1, num_rows
    plan.is_canvas[1:] = True
    return plan


@pytest.mark.parametrize("family", [family for family in FAMILIES if not small_config(family).is_plain])
def test_a_network_with_other_layers_runs_in_torch(family: str) -> None:
    assert not is_supported(int8_model(family, 16))


def test_rows_of_one_sequence_attend_in_blocks() -> None:
    """Whatever their prefixes are: a prompt's rows, which all have another one, share the reading of a page too."""
    assert row_blocks(np.array([0, 0, 0, 0, 0, 1, 2, 2]), most=3).tolist() == [0, 3, 5, 6, 8]


@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("family", [family for family in FAMILIES if small_config(family).is_plain])
@torch.inference_mode()
def test_prompt_and_canvas_equal_torch_but_for_rounding(family: str, head_dim: int) -> None:
    model = int8_model(family, head_dim)
    assert is_supported(model)
    network, ours = CompiledNetwork(model), new_cache(model)
    theirs = PagedCache.allocate(model.config, 16, PAGE_SIZE, "cpu", torch.float32)
    pages = torch.tensor([7, 2, 9, 4, 5])
    plan = causal_plan([torch.arange(13)], [pages])
    x = model.embed(token_ids(13))
    found = model.norm(network.hidden(x, plan, ours).clone())
    wanted = model(x, plan.positions, SdpaAttend(plan, theirs))
    assert (found - wanted).norm() < 0.03 * wanted.norm()
    written = by_slot(ours)
    assert (written.k - theirs.k).norm() < 0.03 * theirs.k.norm()
    assert (written.v - theirs.v).norm() < 0.03 * theirs.v.norm()
    plan = canvas_plan(13, 6, pages)
    x = model.embed(token_ids(6), torch.arange(-1, 5))
    found = model.norm(network.hidden(x, plan, ours).clone())
    wanted = model(x, plan.positions, SdpaAttend(plan, by_slot(ours)), plan.is_canvas)
    assert (found - wanted).norm() < 0.03 * wanted.norm()


@torch.inference_mode()
def test_rows_keep_their_bits_alone_in_chunks_and_in_a_batch() -> None:
    model = int8_model()
    network, ids = CompiledNetwork(model), token_ids(21)
    pages, others = torch.arange(6), torch.arange(8, 14)
    cache = new_cache(model)
    whole = network.hidden(model.embed(ids), causal_plan([torch.arange(21)], [pages]), cache).clone()
    written = cache.k.clone()
    for size in (1, 4, 7):
        cache = new_cache(model)
        for where in torch.arange(21).split(size):
            part = network.hidden(model.embed(ids[where]), causal_plan([where], [pages]), cache)
            assert torch.equal(part, whole[where])
        assert torch.equal(cache.k, written)
    mates = causal_plan([torch.arange(5), torch.arange(21)], [others, pages])
    both = network.hidden(model.embed(torch.cat((ids[:5], ids))), mates, new_cache(model))
    assert torch.equal(both[5:], whole)


@torch.inference_mode()
def test_canvas_rows_do_not_touch_the_cache_nor_the_causal_row() -> None:
    model = int8_model()
    network, pages, cache = CompiledNetwork(model), torch.arange(6), new_cache(model)
    network.hidden(model.embed(token_ids(9)), causal_plan([torch.arange(9)], [pages]), cache)
    x = model.embed(token_ids(6), torch.arange(-1, 5))
    alone = network.hidden(x[:1], causal_plan([torch.tensor([9])], [pages]), cache).clone()
    before = cache.k.clone()
    drafted = network.hidden(x, canvas_plan(9, 6, pages), cache)
    assert torch.equal(drafted[:1], alone)
    assert torch.equal(cache.k, before)


@torch.inference_mode()
def test_nan_stays_in_its_row_and_its_sequence() -> None:
    model = int8_model()
    network, pages = CompiledNetwork(model), [torch.arange(4), torch.arange(8, 12)]
    x = model.embed(token_ids(10))
    plan = causal_plan([torch.arange(5), torch.arange(5)], pages)
    good = network.hidden(x, plan, new_cache(model)).clone()
    x[3, 1] = float("nan")
    found = network.hidden(x, plan, new_cache(model))
    assert found[3].isnan().any()
    assert torch.equal(found[:3], good[:3])
    assert torch.equal(found[5:], good[5:])


def test_models_that_cannot_run_compiled_are_detected() -> None:
    assert not is_supported(quantise_model(random_model(small_config(head_dim=8))))
    assert not is_supported(random_model())
    model = quantise_model(random_model())
    attach_canvas(model, new_canvas(model.config, rank=4, max_canvas_len=4, seed=0))
    assert not is_supported(model), "the canvas adapter is not packed"


@torch.inference_mode()
def test_many_pages_and_few_segments() -> None:
    model = int8_model()
    network, cache = CompiledNetwork(model), new_cache(model, 200)
    pages = torch.randperm(200)[:160]
    plan = causal_plan([torch.arange(600)], [pages])
    found = network.hidden(model.embed(token_ids(600)), plan, cache)
    assert found.isfinite().all()
    assert isinstance(plan.segments[0], Segment)
    last = causal_plan([torch.tensor([599])], [pages])
    assert torch.equal(network.hidden(model.embed(token_ids(600)[-1:]), last, cache), found[-1:].clone())


def packed(pair: LowRank) -> Pair:
    return LowRankModules(quantise_linear(pair.A), quantise_linear(pair.B))


def packed_adapter(model: Transformer, seed: int, rank: int, only: tuple[str, ...] = ()) -> RowAdapter:
    """An adapter of all linears, or of some in the first layer."""
    adapter = random_adapter(seed, rank, model.config, std=0.2)
    for index, layer in enumerate(adapter.layers):
        for name in list(layer) if only else ():  # type: ignore[call-overload]
            if index or name not in only:
                del layer[name]  # type: ignore[operator, union-attr]
    return convert(model.config, adapter, packed, "cpu")


@torch.inference_mode()
def test_row_adapters_equal_torch_but_for_rounding_and_keep_their_bits_in_any_company() -> None:
    """Ranks below, at and above one strip, one adapter of some linears only, and rows with a canvas adapter as well."""
    model = int8_model()
    network, cache = CompiledNetwork(model), new_cache(model)
    adapters = [packed_adapter(model, 1, 5), packed_adapter(model, 2, 64, ("qkv", "dn")), packed_adapter(model, 3, 70)]
    pages = [torch.arange(i, i + 3) for i in (0, 4, 8, 12)]
    x = model.embed(token_ids(6), torch.arange(-1, 5))
    alone = []
    for adapter, own in zip([*adapters, None], pages, strict=True):
        network.hidden(model.embed(token_ids(4)), causal_plan([torch.arange(4)], [own]), cache)
        plan = canvas_plan(4, 6, own)
        rows = [AdapterRows(adapter, torch.arange(6))] if adapter else []
        alone.append(network.hidden(x, plan, cache, rows).clone())
        wanted = model(x, plan.positions, SdpaAttend(plan, by_slot(cache)), plan.is_canvas, rows)
        assert (model.norm(alone[-1]) - wanted).norm() < 0.03 * wanted.norm()
    assert not any(torch.equal(alone[i], alone[3]) for i in range(3))
    plan = joined([canvas_plan(4, 6, own) for own in pages])
    rows = [AdapterRows(adapters[i], torch.arange(6 * i, 6 * i + 6)) for i in (2, 0, 1)]
    together = network.hidden(x.repeat(4, 1), plan, cache, rows)
    for i in range(4):
        assert torch.equal(together[6 * i : 6 * i + 6], alone[i])


def joined(plans: list[RowPlan]) -> RowPlan:
    """The rows of several plans of six rows each in one forward."""
    segments = [Segment(6 * i, 6 * i + 6, plan.segments[0].page_ids) for i, plan in enumerate(plans)]
    shifts = [torch.where(plan.span_end > 0, 6 * i, 0) for i, plan in enumerate(plans)]
    return RowPlan(
        *(torch.cat([getattr(plan, name) for plan in plans]) for name in ("positions", "slots", "is_canvas")),
        torch.cat([plan.prefix_end for plan in plans]),
        torch.cat([plan.span_start + shift for plan, shift in zip(plans, shifts, strict=True)]),
        torch.cat([plan.span_end + shift for plan, shift in zip(plans, shifts, strict=True)]),
        segments,
    )
