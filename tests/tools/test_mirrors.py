"""Tests mirror modules: `tests/engine/test_scheduler.py` tests `quicksilver/engine/scheduler.py`."""

from __future__ import annotations

from pathlib import Path

import quicksilver

PACKAGE = Path(quicksilver.__file__).parent
TESTS = Path(__file__).parents[1]
MIN_SHARE = 0.8


def test_most_modules_have_a_test_file_of_their_name() -> None:
    modules = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    missing = sorted(str(path) for path in modules if not (TESTS / path.parent / f"test_{path.name}").exists())
    share = 1 - len(missing) / len(modules)
    assert share >= MIN_SHARE, f"{share:.1%} of {len(modules)} modules; without a test file: {', '.join(missing)}"
