"""Secrets and the pepper file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from quicksilver.accounts.keys import Pepper, display_of, is_exposed, load_pepper, make_id, make_secret
from quicksilver.errors import QuicksilverError


def test_secret_holds_256_bits_and_the_prefix() -> None:
    secret = make_secret()
    assert secret.startswith("qs-")
    assert len(secret) == 46
    assert len({make_secret() for _ in range(100)}) == 100


def test_display_shows_six_characters_of_the_secret() -> None:
    secret = make_secret()
    assert display_of(secret) == secret[:9] + "…"


def test_ids_name_their_kind() -> None:
    assert make_id("org").startswith("org_")


@pytest.mark.parametrize(
    "bearer",
    [None, "", "qs-", "sk-" + "a" * 43, "qs-" + "a" * 42, "qs-" + "a" * 44, "qs-" + "a" * 42 + "'", "qs-" + "é" * 43,
     "qs-" + "a" * 43 + "\n", "' OR 1=1 --", "qs-" + "\x00" * 43],
)  # fmt: skip
def test_malformed_key_has_no_digest(bearer: str | None) -> None:
    assert Pepper(b"x" * 32).key_digest(bearer) is None


def test_digest_depends_on_pepper_purpose_and_the_whole_message() -> None:
    secret = make_secret()
    pepper = Pepper(b"a" * 32)
    last_changed = secret[:-1] + ("A" if secret[-1] != "A" else "B")
    digests = {
        pepper.key_digest(secret),
        pepper.key_digest(last_changed),
        pepper.digest("other", secret.encode()),
        Pepper(b"b" * 32).key_digest(secret),
    }
    assert len(digests) == 4


def test_pepper_file_is_private_and_created_once(tmp_path: Path) -> None:
    first = load_pepper(tmp_path / "pepper")
    assert stat.S_IMODE((tmp_path / "pepper").stat().st_mode) == 0o600
    assert load_pepper(tmp_path / "pepper").digest("p", b"m") == first.digest("p", b"m")
    assert [path.name for path in tmp_path.iterdir()] == ["pepper"]


def test_pepper_that_others_can_read_is_refused(tmp_path: Path) -> None:
    load_pepper(tmp_path / "pepper")
    (tmp_path / "pepper").chmod(0o644)
    with pytest.raises(QuicksilverError, match="chmod 600"):
        load_pepper(tmp_path / "pepper")


def test_a_group_may_read_a_pepper_that_belongs_to_root() -> None:
    root, server = 0, 10001
    assert not is_exposed(0o440, root, server)
    assert not is_exposed(0o400, server, server)
    assert is_exposed(0o444, root, server)
    assert is_exposed(0o460, root, server)
    assert is_exposed(0o440, server, server)
    assert is_exposed(0o440, root, root)


def test_damaged_pepper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").touch(0o600)
    with pytest.raises(QuicksilverError, match="damaged"):
        load_pepper(tmp_path / "pepper")
