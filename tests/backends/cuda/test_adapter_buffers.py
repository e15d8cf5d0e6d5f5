"""Requests with adapters on the CUDA kernels: mixed equals alone and merged, in forwards, slots and rounds."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.core import DecoderName, DecoderParams
from tests.support.adapter_checks import check_adapter_rounds, check_mixed_adapters
from tests.support.graph_checks import TINIEST_PLAIN

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@torch.inference_mode()
@pytest.mark.parametrize(
    ("decoder", "count", "num_slots"),
    [
        (DecoderParams(DecoderName.AR, 1), 1, 0),
        (DecoderParams(DecoderName.VERIFY, 3), 1, 0),
        (DecoderParams(DecoderName.AR, 1), 2, 16),
    ],
    ids=["ar", "verify", "slots"],
)
def test_adapters_mixed_equal_each_alone_and_each_merged(decoder: DecoderParams, count: int, num_slots: int) -> None:
    check_mixed_adapters(TINIEST_PLAIN, count, decoder, 3, num_slots, longest=5)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("shape", "choices"), [(RoundShape(2, 4), (1, 2)), (RoundShape(1, 4, tree_rows=8), (1,))], ids=["chain", "tree"]
)
def test_rounds_with_adapters_equal_autoregression(shape: RoundShape, choices: tuple[int, ...]) -> None:
    check_adapter_rounds(TINIEST_PLAIN, [shape], choices, 8, 8)
