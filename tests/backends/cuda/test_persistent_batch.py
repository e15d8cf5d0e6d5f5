"""The persistent batch: sequences that join and leave have the tokens of each request alone."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.persistent_batch import SlotState
from tests.support.graph_checks import TINIEST
from tests.support.slot_checks import check_slots

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def test_slots_give_the_tokens_of_each_request_alone() -> None:
    with torch.inference_mode():
        check_slots(TINIEST, count=6, num_tokens=4, num_slots=16, at_once=5)


def test_changes_of_slots_are_sent_together() -> None:
    state = SlotState(4, 8, torch.device("cpu"))
    state.set(1, 7, 20)
    state.set_pages(1, 0, [5, 6])
    state.set(3, 9, 2)
    state.send()
    state.set_pages(1, 2, [8])
    state.set(3, -1, -1)
    state.send()
    assert state.last.tolist() == [-1, 7, -1, -1]
    assert state.position.tolist() == [-1, 20, -1, -1]
    assert state.pages[1].tolist() == [5, 6, 8, -1, -1, -1, -1, -1]


def test_the_last_of_several_changes_of_a_slot_counts() -> None:
    state = SlotState(2, 4, torch.device("cpu"))
    state.set(0, 1, 1)
    state.set_pages(0, 0, [1, 2])
    state.set(0, 5, 3)
    state.forget_pages(0)
    state.set_pages(0, 0, [3])
    state.send()
    assert (int(state.last[0]), int(state.position[0])) == (5, 3)
    assert state.pages[0, 0] == 3
