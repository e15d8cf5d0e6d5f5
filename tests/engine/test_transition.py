"""Draft and acceptance on the device, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from tests.interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.engine.rounds import RoundShape
from tests.detour_checks import check_detour_rows, check_detours, check_rounds_with_detours
from tests.graph_checks import TINIEST_WHOLE, check_chosen_set, check_transition

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("canvas_len", [2, 4, 16])
def test_device_rounds_accept_what_the_decoder_accepts(canvas_len: int) -> None:
    check_transition(canvas_len, canvas_len)


@pytest.mark.parametrize("canvas_len", [2, 4])
def test_acceptance_picks_the_set_behind_the_last_token_that_agreed(canvas_len: int) -> None:
    check_chosen_set(canvas_len, canvas_len)


@pytest.mark.parametrize(("canvas_len", "num_detours"), [(4, 3), (16, 4), (16, 12)])
def test_a_round_goes_on_along_the_detour_that_wins(canvas_len: int, num_detours: int) -> None:
    check_detours(canvas_len, canvas_len, num_detours)


@pytest.mark.parametrize(("canvas_len", "num_detours"), [(5, 3), (16, 4)])
def test_detours_leave_the_draft_in_rows_of_their_own(canvas_len: int, num_detours: int) -> None:
    check_detour_rows(canvas_len, num_detours)


def test_rounds_whose_detours_win_say_what_autoregression_says() -> None:
    with torch.inference_mode():
        check_rounds_with_detours(TINIEST_WHOLE, 6, RoundShape(1, 6, num_detours=2), 20, 0.0)
