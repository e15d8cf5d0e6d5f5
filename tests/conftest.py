"""Settings for every test: the same examples on every run, so that a red run can be repeated, and no clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
