"""Outside data beside the checkout, for tests that are better with it and skip clearly without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("QUICKSILVER_SHARED") or Path(__file__).resolve().parents[3] / "shared")


def shared(*parts: str) -> Path:
    """The path of a file in the shared data; skips the test where it is absent."""
    path = ROOT.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(('data', *parts))}: set QUICKSILVER_SHARED to the folder that has it")
    return path
