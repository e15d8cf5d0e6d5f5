"""One live server per session for all client tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.live import LiveServer


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    server = LiveServer(tmp_path_factory.mktemp("home"))
    server.start()
    yield server
    server.stop()
    assert server.engine.num_open == 0, "a slot was not given back"
