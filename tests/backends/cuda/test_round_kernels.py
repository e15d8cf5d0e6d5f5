"""Draft and acceptance on the device, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from quicksilver.backends.cuda.rounds import RoundShape
from quicksilver.model.config import ModelConfig
from tests.support.graph_checks import (
    TINIEST,
    TINIEST_WHOLE,
    check_chosen_set,
    check_lone_rows_need_few_tiles,
    check_transition,
)
from tests.support.tree_checks import check_rounds_with_trees, check_tree, check_tree_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("canvas_len", [2, 4, 16])
def test_device_rounds_accept_what_the_decoder_accepts(canvas_len: int) -> None:
    check_transition(canvas_len, canvas_len)


@torch.inference_mode()
def test_rows_of_one_sequence_have_a_graph_with_few_tiles() -> None:
    check_lone_rows_need_few_tiles(TINIEST)


@pytest.mark.parametrize("canvas_len", [2, 4])
def test_acceptance_picks_the_set_behind_the_last_token_that_agreed(canvas_len: int) -> None:
    check_chosen_set(canvas_len, canvas_len)


@pytest.mark.parametrize(("canvas_len", "tree_rows"), [(4, 16), (16, 16), (16, 32)])
def test_a_tree_holds_the_likeliest_beginnings_and_the_way_that_proves_right_stays(
    canvas_len: int, tree_rows: int
) -> None:
    check_tree(canvas_len, canvas_len, tree_rows)


@pytest.mark.parametrize("tree_rows", [16, 32])
def test_rows_of_a_tree_read_and_write_slots_of_their_own(tree_rows: int) -> None:
    check_tree_rows(tree_rows)


@pytest.mark.parametrize(("config", "tree_rows"), [(TINIEST_WHOLE, 8), (TINIEST, 12)], ids=["whole", "parts"])
def test_rounds_with_trees_say_what_autoregression_says(config: ModelConfig, tree_rows: int) -> None:
    with torch.inference_mode():
        check_rounds_with_trees(config, 6, RoundShape(1, 6, tree_rows=tree_rows), 20, 0.0)
