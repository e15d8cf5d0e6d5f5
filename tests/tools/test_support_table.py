"""The table of diffusion families covers every one, agrees with the tests, and is up to date."""

from __future__ import annotations

from tests.parity.test_diffusion_families import FAMILIES as COMPARED
from tests.parity.test_diffusion_gemma import FAMILY as GEMMA
from tests.support.dialects import DIALECTS
from tools.support_table import PAGE, PAGES, support_table


def test_every_diffusion_family_has_a_page_a_parity_test_and_the_engine_tests() -> None:
    assert set(PAGES) == set(DIALECTS) == {*COMPARED, GEMMA}
    assert all((PAGE.parent / f"{name}.md").is_file() for name in PAGES.values())


def test_the_table_of_the_page_is_up_to_date() -> None:
    assert support_table() in PAGE.read_text()
