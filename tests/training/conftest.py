"""A tiny random network for the training tests."""

from __future__ import annotations

import pytest

from quicksilver.training.network import Network
from quicksilver.training.toy_task import tiny_model


@pytest.fixture
def network() -> Network:
    return Network(tiny_model())
