"""A server around a scripted engine, with and without accounts, as in `tests/server`."""

from __future__ import annotations

from tests.server.conftest import bank, served

__all__ = ["bank", "served"]
