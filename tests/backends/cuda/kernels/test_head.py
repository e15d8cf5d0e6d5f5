"""The fused head equals the sampler on stored logits, with bias and grammar bitmasks."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels.head import WIDE_BLOCK_V
from tests.support import bias_checks, mask_checks
from tests.support import kernel_checks as checks

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(("temperature", "has_bitmask"), [(0.0, False), (0.8, True)])
def test_head_equals_the_sampler(temperature: float, has_bitmask: bool) -> None:
    checks.check_head(0, (150, 96), 16, temperature, has_bitmask)


@pytest.mark.parametrize(("temperature", "rows"), [(0.0, 16), (0.8, 32)])
def test_biased_head_equals_the_sampler_on_adjusted_logits(temperature: float, rows: int) -> None:
    bias_checks.check_biased_head(0, (150, 96), rows, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_biased_head_with_wide_vocabulary_tiles_equals_the_sampler(temperature: float) -> None:
    bias_checks.check_biased_head(0, (300, 96), 128, temperature, WIDE_BLOCK_V)


def test_a_single_bias_entry_is_applied_and_non_finite_rows_are_reported() -> None:
    bias_checks.check_single_bias(16)


@pytest.mark.parametrize(("temperature", "rows"), [(0.0, 16), (0.8, 32)])
def test_masked_and_biased_head_equals_the_sampler_on_adjusted_logits(temperature: float, rows: int) -> None:
    mask_checks.check_masked_head(0, (150, 96), rows, temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_mask_of_one_token_yields_it_and_non_finite_rows_are_reported(temperature: float) -> None:
    mask_checks.check_narrow_masks(16, temperature)


@pytest.mark.parametrize("vocab_size", [300, 100])
def test_runners_up_are_the_next_best_tokens(vocab_size: int) -> None:
    checks.check_runners_up(0, (vocab_size, 32))


def test_non_finite_rows_are_reported() -> None:
    checks.check_head_reports_non_finite()
