"""API key secrets, which are stored only as keyed hashes, and the pepper file with the hash key.

A secret has 256 random bits, so one HMAC-SHA-256 is enough; a slow password hash would only delay every request. A
guess cannot be tested with the database alone: the pepper file is needed too.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from quicksilver.errors import QuicksilverError

_SECRET = re.compile(r"qs-[A-Za-z0-9_-]{43}")
_PEPPER_BYTES = 32


def make_secret() -> str:
    return "qs-" + secrets.token_urlsafe(32)


def display_of(secret: str) -> str:
    """A prefix of the key for display; too short to authenticate with."""
    return secret[:9] + "…"


def make_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class Pepper:
    """The secret of the server. Each purpose has its own derived key, so hashes of different purposes never match."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, purpose: str, message: bytes) -> str:
        key = hmac.digest(self._secret, purpose.encode(), hashlib.sha256)
        return hmac.new(key, message, hashlib.sha256).hexdigest()

    def key_digest(self, bearer: str | None) -> str | None:
        """The hash under which a bearer token is stored; None if it does not have the form of a key."""
        if bearer is None or _SECRET.fullmatch(bearer) is None:
            return None
        return self.digest("api-key", bearer.encode())


def load_pepper(path: Path) -> Pepper:
    """Reads the pepper file; creates it on first use. Processes that start at the same time use the same file."""
    if not path.exists():
        _create_pepper(path)
    info = path.stat()
    if is_exposed(stat.S_IMODE(info.st_mode), info.st_uid, os.geteuid()):
        raise QuicksilverError("other users can read the pepper file; run chmod 600 on it", code="pepper_exposed")
    secret = path.read_bytes()
    if len(secret) != _PEPPER_BYTES:
        raise QuicksilverError("the pepper file is damaged; restore it from its backup", code="pepper_damaged")
    return Pepper(secret)


def is_exposed(mode: int, owner: int, user: int) -> bool:
    """Whether others than `user` can read the file. One group may read a file of root: Kubernetes mounts secrets so."""
    return bool(mode & (0o037 if owner == 0 and user != 0 else 0o077))


def _create_pepper(path: Path) -> None:
    # Written under a temporary name, then linked: readers never see an incomplete file. Only the first link succeeds.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(handle, secrets.token_bytes(_PEPPER_BYTES))
        os.fsync(handle)
    finally:
        os.close(handle)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
