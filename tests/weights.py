"""Where tests find the real SmolLM2 weights; they skip, with the command to run, where those were not pulled."""

from __future__ import annotations

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.hub.resolve import Checkpoint, resolve

MODEL = "smollm2-135m"


def smollm2() -> Checkpoint:
    try:
        return resolve(MODEL)
    except ModelNotFound as error:
        pytest.skip(error.message)
