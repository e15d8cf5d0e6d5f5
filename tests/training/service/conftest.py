"""A tiny base model on disk, and stores with a trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.service import AdminService, open_admin
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.hub.files import ModelFiles
from quicksilver.tuning.jobs import JobStore
from tests.support.tuning import Shop, write_base


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture
def shop(base: ModelFiles, tmp_path: Path) -> Shop:
    return Shop(tmp_path, base)


@pytest.fixture
def paid(base: ModelFiles, tmp_path: Path) -> Iterator[tuple[Shop, AdminService, TrainingCharges]]:
    """A shop whose objects are in an accounts database."""
    url, config = f"sqlite:///{tmp_path}/books.db", AccountsConfig()
    admin, charges = open_admin(url, config), TrainingCharges(url, config)
    shop = Shop(tmp_path, base)
    shop.objects = charges.objects
    shop.jobs = JobStore(charges.objects)
    yield shop, admin, charges
    charges.close()
    admin.store.close()
