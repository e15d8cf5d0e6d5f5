"""Names of tools that other APIs allow to be longer than those of a chat body."""

from __future__ import annotations

import hashlib

# Longest name of a function in a chat body.
MAX_NAME_CHARS = 64
DIGEST_CHARS = 8


def short_name(name: str) -> str:
    """The name in a chat body. One that is too long ends with a digest, so that two tools stay apart."""
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_CHARS]
    return f"{name[: MAX_NAME_CHARS - DIGEST_CHARS - 1]}_{digest}"
