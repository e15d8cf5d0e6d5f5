"""Hyperparameters: bounds, and what `auto` stands for."""

from __future__ import annotations

import pytest

from quicksilver.errors import InvalidRequest
from quicksilver.tuning.hyperparameters import BOUNDS, checked, resolved


@pytest.mark.parametrize("name", BOUNDS)
def test_values_at_the_bounds_are_accepted_and_beyond_them_refused(name: str) -> None:
    bounds, method = BOUNDS[name], "dpo"
    for value in (bounds.least, bounds.most):
        assert checked(method, {name: value})[name] == value
    for value in (bounds.least - 1, bounds.most + 1, True, "many"):
        with pytest.raises(InvalidRequest, match=name):
            checked(method, {name: value})


def test_whole_numbers_are_needed() -> None:
    with pytest.raises(InvalidRequest, match="whole"):
        checked("supervised", {"n_epochs": 1.5})


def test_kto_needs_two_examples_in_a_batch() -> None:
    assert checked("kto", {"batch_size": 2})["batch_size"] == 2
    assert checked("dpo", {"batch_size": 1})["batch_size"] == 1
    with pytest.raises(InvalidRequest, match="batch_size: a whole number from 2 to 256"):
        checked("kto", {"batch_size": 1})


def test_an_unknown_method_has_its_code() -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked("reinforcement", {})
    assert refused.value.code == "unsupported_method"


@pytest.mark.parametrize(("num_examples", "epochs", "batch_size"), [(10, 10, 1), (100, 3, 6), (10_000, 2, 16)])
def test_auto_depends_on_the_number_of_examples(num_examples: int, epochs: int, batch_size: int) -> None:
    found = resolved("supervised", checked("supervised", {}), num_examples)
    assert (found["n_epochs"], found["batch_size"]) == (epochs, batch_size)


def test_given_values_stay() -> None:
    assert resolved("kto", checked("kto", {"beta": 0.5, "batch_size": 7}), 10)["batch_size"] == 7
