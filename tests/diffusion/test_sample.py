"""Proposals: greedy, sampled and filtered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from quicksilver.core import DecodeParams
from quicksilver.diffusion.sample import (
    LogitContext,
    _keep_top_p,
    gumbel,
    process_logits,
    propose,
    random_tokens,
    row_keys,
    sample_rows,
    splitmix64,
    uniform,
    unpack_bitmask,
)
from tests.support.tiny import decode_params

LOGITS = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])


def seen_tokens(params: dict[str, float], trials: int = 400) -> set[int]:
    """Which tokens ever come out under these settings."""
    found = set()
    for seed in range(trials):
        rows = sample_rows([DecodeParams(temperature=1.5, seed=seed, **params)], [0], [1], [0])  # type: ignore[arg-type]
        found.add(int(propose(LOGITS.clone(), rows).token_ids[0]))
    return found


def test_greedy_takes_the_best_token_with_its_probability_and_entropy() -> None:
    proposal = propose(LOGITS, sample_rows([DecodeParams()], [0], [1], [0]))
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
    rows = sample_rows([DecodeParams(temperature=temperature, seed=11)], [5], [40], [2])
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
    both = sample_rows([DecodeParams(temperature=1.0, seed=3)], [0], [2], [0])
    mixed = type(both)(
        torch.tensor([0.0, 1.0]), torch.tensor([0.1, 1.0]), both.min_p, torch.tensor([1, 0]), both.seeds,
        both.positions, both.steps,
    )  # fmt: skip
    alone = propose(LOGITS, sample_rows([DecodeParams(temperature=1.0, seed=3)], [1], [1], [0]))
    together = propose(LOGITS.repeat(2, 1), mixed)
    assert int(together.token_ids[0]) == 0
    assert int(together.token_ids[1]) == int(alone.token_ids[0])


def test_unusable_logits_are_flagged_row_by_row() -> None:
    logits = LOGITS.repeat(4, 1)
    logits[1, 2] = torch.nan
    logits[2] = -torch.inf
    logits[3, 0] = torch.inf
    for params in (DecodeParams(), DecodeParams(temperature=0.8)):
        proposal = propose(logits, sample_rows([params], [0], [4], [0]))
        assert proposal.is_finite.tolist() == [True, False, False, False]


def column(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def test_the_same_key_gives_the_same_noise_in_any_batch() -> None:
    alone = gumbel(column(7), column(3), column(0), 50)
    among = gumbel(column(1, 7, 9), column(0, 3, 3), column(5, 0, 0), 50)
    assert torch.equal(alone[0], among[1])


def test_seed_position_and_step_each_change_the_noise() -> None:
    base = uniform(row_keys(column(1), column(2), column(3)), 20)
    for seed, position, step in [(2, 2, 3), (1, 3, 3), (1, 2, 4), (2, 1, 3)]:
        assert not torch.equal(base, uniform(row_keys(column(seed), column(position), column(step)), 20))


def test_mixing_equals_splitmix64_in_plain_integers() -> None:
    def plain(x: int) -> int:
        bits = (1 << 64) - 1
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & bits
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & bits
        return x ^ (x >> 31)

    for value in (0, 1, -1, 12345, -(2**63), 2**63 - 1):
        assert int(splitmix64(column(value))[0]) % 2**64 == plain(value % 2**64)


def test_uniform_noise_is_open_and_even() -> None:
    u = uniform(row_keys(torch.arange(200), torch.zeros(200).long(), torch.zeros(200).long()), 1000)
    assert float(u.min()) > 0
    assert float(u.max()) < 1
    counts = torch.histc(u, bins=50, min=0, max=1)
    expected = u.numel() / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 49 + 5 * (2 * 49) ** 0.5
    neighbours = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    assert abs(float(neighbours)) < 0.01


def test_argmax_with_gumbel_noise_samples_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    trials = 20_000
    noise = gumbel(torch.arange(trials), torch.zeros(trials).long(), torch.zeros(trials).long(), 4)
    share = torch.bincount((logits + noise).argmax(-1), minlength=4) / trials
    assert torch.allclose(share, logits.softmax(-1), atol=0.015)


def test_random_tokens_are_uniform_and_differ_by_seed_position_and_step() -> None:
    tokens = random_tokens(1, torch.arange(20_000), 0, 10)
    counts = tokens.bincount(minlength=10)
    assert counts.min() > 1_800
    assert counts.max() < 2_200
    for seed, step in ((2, 0), (1, 1)):
        equal = (random_tokens(seed, torch.arange(20_000), step, 10) == tokens).float().mean()
        assert 0.08 < equal < 0.12


def test_bias_bans_and_penalties_change_only_what_they_name() -> None:
    params = decode_params(
        "verify", logit_bias={4: 9.0}, banned_ids=(0,), presence_penalty=1.0, frequency_penalty=0.5,
    )  # fmt: skip
    logits = LOGITS.repeat(2, 1).clone()
    process_logits(logits, LogitContext(params, prompt=[3], generated=[1, 1], known=[2]))
    assert logits[0].tolist() == [-torch.inf, 2.0 - 2.0, 1.0, 0.0, 8.0]
    assert logits[1].tolist() == [-torch.inf, 0.0, 1.0 - 1.5, 0.0, 8.0]


def test_penalties_of_many_rows_read_the_text_once() -> None:
    class Text(list[int]):
        num_reads = 0

        def __iter__(self) -> Iterator[int]:
            self.num_reads += 1
            return super().__iter__()

    params = decode_params("verify", repetition_penalty=2.0, frequency_penalty=0.5)
    prompt, generated, logits = Text([0]), Text([1]), LOGITS.repeat(4, 1).clone()
    process_logits(logits, LogitContext(params, prompt, generated, known=[1, 2]))
    assert logits[:, :3].tolist() == [[1.5, 0.5, 1.0], [1.5, 0.0, 1.0], [1.5, 0.0, 0.0], [1.5, 0.0, 0.0]]
    assert (prompt.num_reads, generated.num_reads) == (1, 1)


def test_repetition_penalty_sees_the_prompt_and_shrinks_towards_zero_from_both_sides() -> None:
    params = decode_params("verify", repetition_penalty=2.0)
    logits = LOGITS.clone()
    process_logits(logits, LogitContext(params, prompt=[0, 4], generated=[]))
    assert logits[0].tolist() == [1.5, 2.0, 1.0, 0.0, -2.0]


def test_a_bitmask_allows_exactly_its_bits() -> None:
    bitmask = torch.tensor([[0b10010, 0]], dtype=torch.int32)
    assert unpack_bitmask(bitmask, 40)[0].nonzero()[:, 0].tolist() == [1, 4]
    high = torch.tensor([[-(2**31)]], dtype=torch.int32)
    assert unpack_bitmask(high, 32)[0].nonzero()[:, 0].tolist() == [31]
    logits = LOGITS.repeat(2, 1).clone()
    process_logits(logits, LogitContext(DecodeParams(), [], [], bitmask=bitmask))
    assert logits[0].isfinite().tolist() == [False, True, False, False, True]
    assert bool(logits[1].isfinite().all())


def test_the_stutter_penalty_lowers_the_left_neighbour_of_each_row() -> None:
    params = decode_params("edit", stutter_penalty=2.5)
    logits = LOGITS.repeat(3, 1).clone()
    process_logits(logits, LogitContext(params, [], [], left_neighbours=[1, -1, 0]))
    assert logits.tolist() == [[3.0, -0.5, 1.0, 0.0, -1.0], [3.0, 2.0, 1.0, 0.0, -1.0], [0.5, 2.0, 1.0, 0.0, -1.0]]
