"""`quicksilver inspect`: a description of real weights."""

from __future__ import annotations

from tests.support.command import quicksilver
from tests.support.weights import MODEL, nano


def test_inspect_describes_real_weights() -> None:
    nano()
    shown = quicksilver("inspect", MODEL).stdout
    assert "llama" in shown
    assert "49152" in shown.replace(",", "")
