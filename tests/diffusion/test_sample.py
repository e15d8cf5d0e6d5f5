"""Proposals: greedy, sampled and filtered."""

from __future__ import annotations

import pytest
import torch

from quicksilver.core import DecodeParams
from quicksilver.diffusion.noise import gumbel
from quicksilver.diffusion.reference import sample_rows
from quicksilver.diffusion.sample import _keep_top_p, propose

LOGITS = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])


def seen_tokens(params: dict[str, float], trials: int = 400) -> set[int]:
    """Which tokens ever come out under these settings."""
    found = set()
    for seed in range(trials):
        rows = sample_rows(DecodeParams(temperature=1.5, seed=seed, **params), 0, 1, 0)  # type: ignore[arg-type]
        found.add(int(propose(LOGITS.clone(), rows).token_ids[0]))
    return found


def test_greedy_takes_the_best_token_with_its_probability_and_entropy() -> None:
    proposal = propose(LOGITS, sample_rows(DecodeParams(), 0, 1, 0))
    p = LOGITS.softmax(-1)[0]
    assert int(proposal.token_ids[0]) == 0
    assert torch.allclose(proposal.confidence[0], p[0])
    assert torch.allclose(proposal.entropy[0], -(p * p.log()).sum())


@pytest.mark.parametrize("scale", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("temperature", [0.2, 0.75, 2.0])
def test_noise_for_candidates_only_gives_the_same_tokens(scale: float, temperature: float) -> None:
    torch.manual_seed(0)
    logits = scale * torch.randn(40, 3000)
    logits[::3, 1000:] = -torch.inf
    rows = sample_rows(DecodeParams(temperature=temperature, seed=11), 5, 40, 2)
    noise = gumbel(rows.seeds, rows.positions, rows.steps, 3000)
    assert torch.equal(propose(logits, rows).token_ids, (logits / temperature + noise).argmax(-1))


def test_filters_keep_exactly_the_tokens_they_should() -> None:
    assert seen_tokens({}) == {0, 1, 2, 3, 4}
    assert seen_tokens({"top_k": 2}) == {0, 1}
    assert seen_tokens({"top_p": 0.55}) == {0, 1}  # the first alone has 0.505 at temperature 1.5
    assert seen_tokens({"top_p": 1e-9}) == {0}
    assert seen_tokens({"min_p": 0.3}) == {0, 1}


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_top_p_is_exact_for_small_and_large_nuclei(scale: float) -> None:
    """Scales make nuclei of thousands, hundreds and a few of 5,000 tokens."""
    torch.manual_seed(0)
    scaled, top_p = scale * torch.randn(6, 5000), torch.tensor([0.5, 0.9, 0.99, 1.0, 1e-6, 0.95])
    found = _keep_top_p(scaled, top_p)
    for row, kept, share in zip(scaled, found, top_p.tolist(), strict=True):
        ordered = row.softmax(-1).sort(descending=True)
        count = int((ordered.values.double().cumsum(0) < share).sum()) + 1 if share < 1 else len(row)
        assert abs(int(kept.isfinite().sum()) - count) <= 1  # where a sum meets the share but for rounding
        assert torch.equal(kept[ordered.indices[: count - 1]], row[ordered.indices[: count - 1]])


def test_settings_of_one_row_do_not_affect_another() -> None:
    both = sample_rows(DecodeParams(temperature=1.0, seed=3), 0, 2, 0)
    mixed = type(both)(
        torch.tensor([0.0, 1.0]), torch.tensor([0.1, 1.0]), both.min_p, torch.tensor([1, 0]), both.seeds,
        both.positions, both.steps,
    )  # fmt: skip
    alone = propose(LOGITS, sample_rows(DecodeParams(temperature=1.0, seed=3), 1, 1, 0))
    together = propose(LOGITS.repeat(2, 1), mixed)
    assert int(together.token_ids[0]) == 0
    assert int(together.token_ids[1]) == int(alone.token_ids[0])


def test_unusable_logits_are_flagged_row_by_row() -> None:
    logits = LOGITS.repeat(4, 1)
    logits[1, 2] = torch.nan
    logits[2] = -torch.inf
    logits[3, 0] = torch.inf
    for params in (DecodeParams(), DecodeParams(temperature=0.8)):
        proposal = propose(logits, sample_rows(params, 0, 4, 0))
        assert proposal.is_finite.tolist() == [True, False, False, False]
