"""Signatures of thinking blocks."""

from __future__ import annotations

from pathlib import Path

from quicksilver.accounts.keys import load_pepper
from quicksilver.server.endpoints.messages.signing import Signer


def test_a_signature_fits_its_text_and_its_server_only(tmp_path: Path) -> None:
    signer = Signer(load_pepper(tmp_path / "a").digest)
    signature = signer.sign("deep thought")
    assert signer.is_valid("deep thought", signature)
    assert not signer.is_valid("deep thoughts", signature)
    assert not signer.is_valid("deep thought", "")
    assert not signer.is_valid("deep thought", "ü" * 64)
    assert Signer(load_pepper(tmp_path / "a").digest).is_valid("deep thought", signature)
    assert not Signer(load_pepper(tmp_path / "b").digest).is_valid("deep thought", signature)
