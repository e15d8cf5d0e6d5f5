"""Noise depends on its key only, and has the right distribution."""

from __future__ import annotations

import torch

from quicksilver.diffusion.noise import gumbel, random_tokens, row_keys, splitmix64, uniform


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
