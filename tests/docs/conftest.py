"""The scripted server for pages that show requests."""

from __future__ import annotations

from tests.server.conftest import served

__all__ = ["served"]
