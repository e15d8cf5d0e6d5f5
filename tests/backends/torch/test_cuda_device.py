"""The plain torch path on a GPU: the same plans as on the CPU, within the arithmetic's rounding."""

from __future__ import annotations

import pytest
import torch

from quicksilver.model.attention import PagedCache, SdpaAttend
from tests.model.build import PAGE_SIZE, causal_plan, random_model, run_dense, token_ids

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
