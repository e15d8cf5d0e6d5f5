"""Prompt lookup on the device equals `diffusion/prompt_lookup.py`."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

import triton
import triton.language as tl

from quicksilver.backends.cuda.prompt_lookup_kernel import apply_prompt_lookup
from quicksilver.diffusion.verify import lookup
from tests.support.kernel_checks import here
from tests.support.proposals import with_lookup

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@triton.jit
def _kernel(text, end, draft, confidence, out, replaced, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    k = tl.arange(0, BLOCK)
    drafted = tl.load(draft + k, mask=k < COUNT, other=0)
    bits = tl.load(confidence + k, mask=k < COUNT, other=0)
    tokens, from_lookup = apply_prompt_lookup(text, end, drafted, bits, k, COUNT)
    tl.store(out + k, tokens, mask=k < COUNT)
    tl.store(replaced + k, from_lookup.to(tl.int32), mask=k < COUNT)


@pytest.mark.parametrize("seed", range(6))
def test_drafts_and_replaced_tokens_equal_the_reference(seed: int) -> None:
    torch.manual_seed(seed)
    device, length, count = here().device, 40, 5
    text = torch.randint(0, 2 + seed % 2, (length,))
    draft, confidence = torch.randint(0, 3, (count,)), torch.rand(count)
    out, replaced = (torch.full((count,), -7, dtype=torch.int32, device=device) for _ in range(2))
    on_device = (text.int().to(device), draft.int().to(device), confidence.view(torch.int32).to(device))
    _kernel[(1,)](on_device[0], length - 1, on_device[1], on_device[2], out, replaced, COUNT=count, BLOCK=8)
    assert out.tolist() == with_lookup(text.tolist(), draft.numpy(), confidence.numpy()).tolist()
    assert int(replaced.sum()) == len(lookup(text.tolist(), draft.numpy(), confidence.numpy()))
