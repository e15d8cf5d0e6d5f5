"""A tiny base model on disk, and a store with a trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from quicksilver.hub.files import ModelFiles
from tests.support.tuning import Shop, write_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def shop(base: ModelFiles, tmp_path: Path) -> Shop:
    return Shop(tmp_path, base)
