"""Grammars in the graphs' fused head, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported, or half of it is not interpreted
    if tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 4):
        pytest.skip("Triton's interpreter does not run on numpy 2.4 and later", allow_module_level=True)
pytest.importorskip("triton", reason="needs Triton")

from quicksilver.core import DecoderName
from tests.support.graph_checks import TINIEST_WHOLE
from tests.support.mask_checks import (
    check_a_broken_grammar_fails_alone,
    check_constrained_texts,
    check_rare_wishes_go_alone,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("names", "temperature"),
    [((DecoderName.AR, DecoderName.VERIFY), 0.0), ((DecoderName.CONFIDENCE,), 0.8)],
    ids=["verify", "confidence"],
)
def test_constrained_and_free_requests_say_what_the_plain_path_says(
    names: tuple[DecoderName, ...], temperature: float
) -> None:
    with torch.inference_mode():
        check_constrained_texts(TINIEST_WHOLE, names, 7, temperature)


def test_only_who_has_rare_wishes_goes_the_plain_way() -> None:
    with torch.inference_mode():
        check_rare_wishes_go_alone(TINIEST_WHOLE, 6)


def test_a_grammar_that_raises_fails_its_own_request_only() -> None:
    with torch.inference_mode():
        check_a_broken_grammar_fails_alone(TINIEST_WHOLE, 5)
