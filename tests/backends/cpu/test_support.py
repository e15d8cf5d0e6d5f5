"""Which machines the compiled CPU backend supports."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch

from quicksilver.backends.cpu import support
from quicksilver.backends.cpu.support import unsupported_reason


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    unsupported_reason.cache_clear()
    yield
    unsupported_reason.cache_clear()


@pytest.mark.parametrize(
    ("machine", "capability", "has_numba", "reason"),
    [
        ("x86_64", "AVX2", True, None),
        ("AMD64", "AVX512", True, None),
        ("aarch64", "DEFAULT", True, "aarch64"),
        ("x86_64", "DEFAULT", True, "AVX2"),
        ("x86_64", "AVX2", False, "numba"),
    ],
)
def test_the_reason_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, machine: str, capability: str, has_numba: bool, reason: str | None
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(support, "find_spec", lambda name: object() if has_numba else None)
    found = unsupported_reason()
    assert found is None if reason is None else reason in str(found)
