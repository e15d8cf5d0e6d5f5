"""Paths of real weights. Tests are skipped, with the command to run, if the weights were not pulled."""

from __future__ import annotations

import pytest

from quicksilver.errors import ModelNotFound
from quicksilver.hub.resolve import ModelFiles, resolve

MODEL = "nano"
PARENT = "smollm2-135m"
CODER = "coder-1.5b"


def nano() -> ModelFiles:
    return _resolve(MODEL)


def smollm2() -> ModelFiles:
    return _resolve(PARENT)


def coder() -> ModelFiles:
    return _resolve(CODER)


def _resolve(name: str) -> ModelFiles:
    try:
        return resolve(name)
    except ModelNotFound as error:
        pytest.skip(error.message)
