"""Settings for all tests: the same hypothesis examples on every run, without deadlines."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
