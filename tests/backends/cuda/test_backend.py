"""The CUDA backend with biased requests, in rounds and outside of them."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.inflight import RoundShape
from tests.support.bias_checks import check_bias_beyond_table, check_rounds_with_bias
from tests.support.graph_checks import TINIEST_PLAIN

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(
    ("prompt_lens", "shape", "temperature"),
    [([6, 5], RoundShape(2, 4), 0.0), ([6], RoundShape(1, 6, tree_rows=8), 0.8)],
    ids=["beside an unbiased request", "tree"],
)
def test_rounds_with_a_biased_request_equal_the_eager_path(
    prompt_lens: list[int], shape: RoundShape, temperature: float
) -> None:
    with torch.inference_mode():
        check_rounds_with_bias(TINIEST_PLAIN, prompt_lens, shape, 12, temperature)


def test_a_request_with_more_bias_than_the_table_holds_gives_the_same_answer() -> None:
    with torch.inference_mode():
        check_bias_beyond_table(TINIEST_PLAIN, 5)
