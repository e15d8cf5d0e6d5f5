"""API key secrets: made, shown once, and kept only as keyed hashes.

A secret is 256 random bits, so one HMAC-SHA-256 is enough and a slow password hash would only slow every request.
The pepper file is a second factor: a stolen database alone cannot check a guess.
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
    """Enough to recognise a key in a list, far too little to use it."""
    return secret[:9] + "…"


def make_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(12)}"


class Pepper:
    """The server's own secret. One derived key per purpose, so that no hash can stand in for another."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def digest(self, purpose: str, message: bytes) -> str:
        key = hmac.digest(self._secret, purpose.encode(), hashlib.sha256)
        return hmac.new(key, message, hashlib.sha256).hexdigest()

    def key_digest(self, bearer: str | None) -> str | None:
        """The hash under which a bearer token is stored; None when it cannot be one of our keys."""
        if bearer is None or _SECRET.fullmatch(bearer) is None:
            return None
        return self.digest("api-key", bearer.encode())


def load_pepper(path: Path) -> Pepper:
    """Read the pepper, making it on first use. Processes that start together agree on one file."""
    if not path.exists():
        _create_pepper(path)
    info = path.stat()
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise QuicksilverError("the pepper file can be read by others; chmod 600 it", code="pepper_exposed")
    secret = path.read_bytes()
    if len(secret) != _PEPPER_BYTES:
        raise QuicksilverError("the pepper file is damaged; restore it from its backup", code="pepper_damaged")
    return Pepper(secret)


def _create_pepper(path: Path) -> None:
    # Written whole under another name, then linked: a reader never sees half a file, and the first link wins.
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
