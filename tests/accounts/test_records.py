"""Bounds of prices, limits and orders, and exact cost."""

from __future__ import annotations

import pytest

from quicksilver.accounts.records import MAX_PRICE, MAX_TOKENS, Limits, Order, Price
from quicksilver.core import Usage
from quicksilver.errors import InvalidRequest


def test_cost_is_exact_and_cached_input_is_cheaper() -> None:
    price = Price(input=250_000, cached=25_000, output=750_000)
    assert price.cost(Usage(1_000_003, 1_000_000, 7)) == 3 * 250_000 + 1_000_000 * 25_000 + 7 * 750_000


@pytest.mark.parametrize("parts", [(1, 2, 1), (-1, -1, 1), (1, 1, -1), (MAX_PRICE + 1, 1, 1), (1, 1, MAX_PRICE + 1)])
def test_invalid_prices_are_refused(parts: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidRequest):
        Price(*parts)


def test_largest_request_at_the_largest_price_fits_the_database() -> None:
    assert Price(MAX_PRICE, 0, MAX_PRICE).cost(Usage(MAX_TOKENS, 0, MAX_TOKENS)) < 2**63


@pytest.mark.parametrize("value", [-1, MAX_TOKENS + 1])
def test_numbers_out_of_bounds_are_refused(value: int) -> None:
    with pytest.raises(InvalidRequest):
        Order("r", "m", value, 1)
    with pytest.raises(InvalidRequest):
        Order("r", "m", 1, value)
    with pytest.raises(InvalidRequest):
        Limits(requests=value)
    assert Limits(requests=MAX_TOKENS).is_rated
    assert not Limits(concurrency=3).is_rated
