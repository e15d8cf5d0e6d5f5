"""Launch options of programmatic dependent launch."""

from __future__ import annotations

import pytest

from quicksilver.backends.cuda.kernels import launch
from quicksilver.backends.cuda.kernels.launch import pdl_launches, pdl_options


def test_pdl_is_off_by_default_and_without_support(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pdl_options() == {"PDL": 0}
    monkeypatch.setattr(launch, "_supports_pdl", lambda: False)
    with pdl_launches(True):
        assert pdl_options() == {"PDL": 0}


def test_nested_contexts_restore_the_outer_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_supports_pdl", lambda: True)
    with pdl_launches(True):
        with pdl_launches(True, is_early=True):
            assert pdl_options() == {"PDL": 2, "launch_pdl": True}
        with pdl_launches(False):
            assert pdl_options() == {"PDL": 0}
        assert pdl_options() == {"PDL": 1, "launch_pdl": True}
    assert pdl_options() == {"PDL": 0}
