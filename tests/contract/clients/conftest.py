"""The address of a live server. Nothing here imports the package: the clients stand alone, as they do at a user's."""

from __future__ import annotations

import os

import pytest

ANSWER = "Paris is the capital of France."
QUESTION = "What is the capital of France?"

collect_ignore_glob = [] if "QUICKSILVER_URL" in os.environ else ["test_*.py"]
"""Only `run.py` beside this file starts the server and sets the address."""


@pytest.fixture(scope="session")
def url() -> str:
    return os.environ["QUICKSILVER_URL"]
