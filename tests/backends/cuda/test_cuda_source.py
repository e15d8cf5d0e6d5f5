"""The plain torch path on a GPU: the same plans and formats as on the CPU, within the arithmetic's rounding."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.attention import PagedCache, SdpaAttend
from quicksilver.model.formats.packing import dequantise_int4, dequantise_int8
from quicksilver.model.formats.quantise import make_linear, quantise_model, quantise_weight
from tests.model.build import PAGE_SIZE, causal_plan, random_model, run_dense, small_config, token_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_ragged_forward_equals_the_cpus() -> None:
    model, texts = random_model(), [token_ids(21), token_ids(9, seed=4)]
    pages = [torch.tensor([9, 2, 7, 1, 0, 5]), torch.tensor([3, 11, 4])]
    plan = causal_plan([torch.arange(21), torch.arange(9)], pages)
    wanted = torch.cat([run_dense(model, text) for text in texts])
    model, plan = model.cuda(), plan.to("cuda")
    cache = PagedCache.allocate(model.config, 16, PAGE_SIZE, "cuda", torch.float32)
    with torch.inference_mode():
        found = model(model.embed(torch.cat(texts).cuda()), plan.positions, SdpaAttend(plan, cache))
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_expanded_weights_are_those_stored(scheme: str) -> None:
    torch.manual_seed(0)
    stored = {part: tensor.cuda() for part, tensor in quantise_weight(torch.randn(64, 96), None, scheme).items()}
    weight = dequantise_int4(**stored) if scheme == "int4" else dequantise_int8(**stored)
    x = torch.randn(5, 96, device="cuda")
    torch.testing.assert_close(make_linear(stored, scheme)(x), x @ weight.T, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_quantised_model_runs_in_half_precision(scheme: str) -> None:
    model = quantise_model(random_model(small_config("qwen2")).to("cuda", torch.bfloat16), scheme)
    ids = token_ids(12).cuda()
    plan = causal_plan([torch.arange(12)], [torch.arange(3)]).to("cuda")
    cache = PagedCache.allocate(model.config, 4, PAGE_SIZE, "cuda", torch.bfloat16)
    with torch.inference_mode():
        logits = model.logits(model(model.embed(ids), plan.positions, SdpaAttend(plan, cache)))
    assert logits.dtype == torch.bfloat16
    assert logits.isfinite().all()
