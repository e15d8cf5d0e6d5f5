"""Files in pieces."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest

from quicksilver.accounts import stored_files
from quicksilver.accounts.objects import open_local
from quicksilver.accounts.stored_files import describe, read_pieces, write_file


def test_a_file_that_is_written_again_has_no_old_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "PIECE_BYTES", 4)
    store = open_local(tmp_path / "objects.db")
    reply = describe("a", "batch", 10)
    write_file(store, "", reply, BytesIO(b"0123456789"))
    write_file(store, "", reply, BytesIO(b"abc"))
    assert b"".join(read_pieces(store, "", reply["id"])) == b"abc"
    store.close()
