"""Draft and acceptance on the device equal the decoder's."""

from __future__ import annotations

import pytest

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from tests.support.graph_checks import check_acceptance

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("canvas_len", [2, 4, 16])
def test_the_device_accepts_what_the_decoder_accepts(canvas_len: int) -> None:
    check_acceptance(canvas_len, canvas_len)
