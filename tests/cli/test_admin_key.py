"""The first admin key in a file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.records import NewKey
from quicksilver.cli.admin_key import checked_key_file, hand_over
from quicksilver.cli.serve_run import open_accounts
from quicksilver.errors import InvalidRequest, QuicksilverError

KEY = NewKey("key_1", "qs-secret")


def test_the_file_is_for_its_owner_only_and_the_secret_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "admin[1].key"
    hand_over(KEY, path)
    assert path.read_text() == "qs-secret\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    printed = capsys.readouterr()
    assert KEY.secret not in printed.out + printed.err
    assert str(path) in printed.err


def test_without_a_file_the_secret_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hand_over(KEY, None)
    assert "admin key, shown once: qs-secret" in capsys.readouterr().err


def test_a_file_that_exists_is_kept_and_the_error_says_how_to_get_a_secret(tmp_path: Path) -> None:
    path = tmp_path / "admin.key"
    path.write_text("another secret")
    with pytest.raises(QuicksilverError, match=r"File exists; .* quicksilver keys rotate key_1"):
        hand_over(KEY, path)
    assert path.read_text() == "another secret"


def test_a_file_in_a_missing_folder_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no folder"):
        checked_key_file(tmp_path / "none" / "admin.key")
    assert checked_key_file(tmp_path / "admin.key") == tmp_path / "admin.key"
    assert checked_key_file(None) is None


async def test_only_the_first_start_writes_the_key(tmp_path: Path) -> None:
    path, url = tmp_path / "admin.key", f"sqlite:///{tmp_path / 'accounts.db'}"
    for _ in range(2):
        async with open_accounts(url, AccountsConfig(), path) as accounts:
            identity = await accounts.authenticate(path.read_text().strip())
            assert identity.is_admin
