"""Biased requests in graphs and rounds, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.rounds import RoundShape, one_forward
from tests.support.bias_checks import check_full_tables_and_fuller, check_rounds_with_bias
from tests.support.graph_checks import TINIEST_WHOLE

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("prompt_lens", "shape", "temperature"),
    [
        ([6, 5], RoundShape(2, 4), 0.0),
        ([6], RoundShape(1, 6, tree_rows=8), 0.8),
        ([6], one_forward(1, 4), 0.0),
    ],
    ids=["beside another", "trees", "one forward"],
)
def test_rounds_with_a_biased_request_say_what_the_plain_path_says(
    prompt_lens: list[int], shape: RoundShape, temperature: float
) -> None:
    with torch.inference_mode():
        check_rounds_with_bias(TINIEST_WHOLE, prompt_lens, shape, 12, temperature)


def test_a_request_with_more_bias_than_a_table_holds_says_the_same() -> None:
    with torch.inference_mode():
        check_full_tables_and_fuller(TINIEST_WHOLE, 5)
