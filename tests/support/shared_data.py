"""External data beside the checkout. Tests that need it are skipped with a message if it is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("QUICKSILVER_SHARED") or Path(__file__).resolve().parents[3] / "shared")


def shared(*parts: str) -> Path:
    """Return the path of a file in the external data, or skip the test."""
    path = ROOT.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"needs {'/'.join(('data', *parts))}: set QUICKSILVER_SHARED to the folder that has it")
    return path
