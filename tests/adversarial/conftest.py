"""A server around a scripted engine, as in `tests/server`."""

from __future__ import annotations

from tests.server.conftest import served

__all__ = ["served"]
