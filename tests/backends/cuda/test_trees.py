"""Draft trees: construction, scratch slots, acceptance, and the copy of accepted KV."""

from __future__ import annotations

import pytest

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from tests.support.tree_checks import check_tree, check_tree_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize(("canvas_len", "tree_rows"), [(4, 16), (16, 16), (16, 32)])
def test_a_tree_holds_the_likeliest_paths_and_the_accepted_one_is_kept(canvas_len: int, tree_rows: int) -> None:
    check_tree(canvas_len, canvas_len, tree_rows)


@pytest.mark.parametrize("tree_rows", [16, 32])
def test_tree_rows_write_and_read_scratch_slots(tree_rows: int) -> None:
    check_tree_rows(tree_rows)
