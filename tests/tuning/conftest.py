"""A store of objects in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.objects import ObjectStore, open_local


@pytest.fixture
def objects(tmp_path: Path) -> Iterator[ObjectStore]:
    store = open_local(tmp_path / "objects.db")
    yield store
    store.close()
