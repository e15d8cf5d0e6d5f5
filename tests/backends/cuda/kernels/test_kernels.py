"""Every kernel against plain torch on random ragged mixes."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels import linears
from tests.support import bias_checks, linear_checks, mask_checks
from tests.support import kernel_checks as checks

# Triton's interpreter computes both sides of every choice, in numpy, which warns of the one not taken.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("seed", "heads", "splits", "block_m"),
    [(0, (6, 2, 32), 1, 64), (2, (4, 4, 16), 2, 64), (0, (6, 2, 32), 1, 128), (1, (4, 4, 16), 2, 128)],
)
def test_attention_equals_sdpa_on_ragged_mixes(
    seed: int, heads: tuple[int, int, int], splits: int, block_m: int
) -> None:
    checks.check_attention(seed, heads, splits, block_m)


@pytest.mark.parametrize(("splits", "past"), [(1, 77), (4, 20), (4, 118)])
def test_rows_with_keys_of_their_own_equal_rows_in_the_text(splits: int, past: int) -> None:
    checks.check_forked_attention(0, (6, 2, 16), splits, past)


@pytest.mark.parametrize(("heads", "rows", "has_norm"), [((6, 2, 32), 16, False), ((4, 4, 32), 70, True)])
def test_rotation_and_cache_write_equal_the_network(heads: tuple[int, int, int], rows: int, has_norm: bool) -> None:
    checks.check_rotate(0, heads, rows, has_norm)


SMALL = linear_checks.LayerShape((192, 320), (4, 2, 32))
NARROW = linear_checks.LayerShape((96, 160), (2, 1, 64))


@pytest.mark.parametrize(("shape", "has_norms"), [(SMALL, False), (NARROW, True)])
def test_qkv_equals_its_steps(shape: linear_checks.LayerShape, has_norms: bool) -> None:
    linear_checks.check_qkv(0, shape, 16, has_norms)


@pytest.mark.parametrize("slice_rows", [4, 16])
def test_qkv_of_many_rows_is_finished_in_slices(monkeypatch: pytest.MonkeyPatch, slice_rows: int) -> None:
    monkeypatch.setattr(linears, "slice_rows", lambda _: slice_rows)
    linear_checks.check_qkv(0, SMALL, 32, True)


@pytest.mark.parametrize("shape", [SMALL, NARROW])
def test_ffn_equals_its_steps(shape: linear_checks.LayerShape) -> None:
    linear_checks.check_ffn(0, shape, 16)


def test_a_row_is_the_same_among_16_32_and_64() -> None:
    linear_checks.check_layer_ignores_row_count(0, NARROW)


def test_embedding_keeps_to_its_table() -> None:
    linear_checks.check_embed_keeps_to_its_table()


def test_row_kernels_equal_torch() -> None:
    checks.check_rows(0, 96)


@pytest.mark.parametrize(("temperature", "has_bitmask"), [(0.0, False), (0.8, True)])
def test_head_equals_the_sampler(temperature: float, has_bitmask: bool) -> None:
    checks.check_head(0, (150, 96), 16, temperature, has_bitmask)


@pytest.mark.parametrize(("temperature", "rows"), [(0.0, 16), (0.8, 32)])
def test_biased_head_equals_the_sampler_behind_adjusted_logits(temperature: float, rows: int) -> None:
    bias_checks.check_biased_head(0, (150, 96), rows, temperature)


def test_a_lone_bias_is_found_and_hides_no_bad_number() -> None:
    bias_checks.check_lone_bias(16)


@pytest.mark.parametrize(("temperature", "rows"), [(0.0, 16), (0.8, 32)])
def test_masked_and_biased_head_equals_the_sampler_behind_adjusted_logits(temperature: float, rows: int) -> None:
    mask_checks.check_masked_head(0, (150, 96), rows, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_mask_of_one_token_gets_it_and_hides_no_bad_number(temperature: float) -> None:
    mask_checks.check_narrow_masks(16, temperature)


@pytest.mark.parametrize("vocab_size", [300, 100])
def test_runners_up_are_the_best_of_the_next_tiles(vocab_size: int) -> None:
    checks.check_runners_up(0, (vocab_size, 32))


def test_head_reports_bad_numbers() -> None:
    checks.check_head_reports_bad_numbers()
