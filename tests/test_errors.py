"""The exception tree: every error has a status, a type and a code that clients can rely on."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import pytest

from quicksilver import errors
from quicksilver.errors import InvalidRequest, QuicksilverError


def all_errors(base: type[QuicksilverError] = QuicksilverError) -> Iterator[type[QuicksilverError]]:
    yield base
    for child in base.__subclasses__():
        yield from all_errors(child)


@pytest.mark.parametrize("error", sorted(set(all_errors()), key=lambda error: error.__name__))
def test_every_error_has_a_known_status_a_type_and_a_code(error: type[QuicksilverError]) -> None:
    assert 400 <= HTTPStatus(error.status) <= 599
    assert error.type
    assert error.code == error.code.lower()


def test_a_message_keeps_its_parameter_and_may_have_another_code() -> None:
    error = InvalidRequest("too long", param="prompt", code="string_too_long")
    assert (str(error), error.message, error.param, error.code) == ("too long", "too long", "prompt", "string_too_long")
    assert InvalidRequest.code == errors.InvalidRequest("x").code != "string_too_long"
