"""Forwards as graph replays: graph variants, and grammars in the fused head."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.core import DecoderName
from tests.support.graph_checks import (
    TINIEST,
    TINIEST_PLAIN,
    check_canvas_beyond_the_context,
    check_prompts_without_graph,
    check_single_sequence_variant,
)
from tests.support.mask_checks import check_broken_grammar, check_constrained_texts, check_rare_options

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@torch.inference_mode()
def test_rows_of_one_sequence_use_a_variant_with_a_smaller_attention_grid() -> None:
    check_single_sequence_variant(TINIEST)


@torch.inference_mode()
def test_prompts_with_more_rows_than_a_graph_have_the_answers_of_the_eager_path() -> None:
    check_prompts_without_graph(TINIEST, [30, 14], 16)


@torch.inference_mode()
def test_a_canvas_may_extend_beyond_the_context() -> None:
    check_canvas_beyond_the_context(TINIEST)


@pytest.mark.parametrize(
    ("names", "temperature"),
    [((DecoderName.AR, DecoderName.VERIFY), 0.0), ((DecoderName.CONFIDENCE,), 0.8)],
    ids=["verify", "confidence"],
)
def test_constrained_and_free_requests_equal_the_eager_path(names: tuple[DecoderName, ...], temperature: float) -> None:
    with torch.inference_mode():
        check_constrained_texts(TINIEST_PLAIN, names, 7, temperature)


def test_only_requests_with_rare_sampling_options_take_the_eager_path() -> None:
    with torch.inference_mode():
        check_rare_options(TINIEST_PLAIN, 6)


def test_a_grammar_that_raises_fails_only_its_own_request() -> None:
    with torch.inference_mode():
        check_broken_grammar(TINIEST_PLAIN, 5)
