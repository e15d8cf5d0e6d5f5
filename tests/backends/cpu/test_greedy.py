"""Compiled greedy proposals equal the sampler's."""

from __future__ import annotations

import pytest
import torch

from quicksilver.backends.cpu.support import unsupported_reason
from quicksilver.diffusion.sample import propose, sample_rows
from tests.support.tiny import decode_params

if unsupported_reason() is not None:
    pytest.skip(f"compiled CPU backend: {unsupported_reason()}", allow_module_level=True)

from quicksilver.backends.cpu.greedy import propose_greedy


@pytest.mark.parametrize("vocab_size", [3, 16, 97, 1000])
def test_tokens_confidence_and_entropy_equal_the_samplers(vocab_size: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, vocab_size) * torch.logspace(-2, 2, 7)[:, None]
    logits[3, ::2] = -torch.inf
    wanted = propose(logits, sample_rows([decode_params("ar")], [0], [7], [0]))
    token_ids, confidence, entropy, is_finite = propose_greedy(logits)
    assert torch.equal(token_ids, wanted.token_ids)
    torch.testing.assert_close(confidence, wanted.confidence, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropy, wanted.entropy, rtol=1e-4, atol=1e-5)
    assert is_finite.all()


def test_unusable_rows_are_flagged_and_do_not_affect_others() -> None:
    logits = torch.randn(5, 40)
    logits[0, 3] = torch.nan
    logits[1] = -torch.inf
    logits[2, 39] = torch.inf
    token_ids, _, _, is_finite = propose_greedy(logits)
    assert is_finite.tolist() == [False, False, False, True, True]
    assert token_ids[3:].tolist() == logits[3:].argmax(-1).tolist()


def test_the_first_of_equals_is_taken() -> None:
    logits = torch.zeros(1, 100)
    logits[0, [17, 40, 99]] = 2.0
    assert propose_greedy(logits)[0].tolist() == [17]
