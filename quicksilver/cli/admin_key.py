"""The first admin key of the accounts: printed once, or written to a file that only its owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from quicksilver.accounts.records import NewKey
from quicksilver.cli.console import errors
from quicksilver.errors import InvalidRequest, QuicksilverError


def checked_key_file(path: Path | None) -> Path | None:
    """The absolute path. Refuses, before anything is loaded, a file whose folder does not exist."""
    if path is not None and not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--admin-key-file {path}: there is no folder {path.parent}", param="admin_key_file")
    return path.absolute() if path is not None else None


def hand_over(key: NewKey, path: Path | None) -> None:
    """Write the secret to the file, which must not exist, or print it if there is no file."""
    if path is None:
        errors.print(f"[bold]admin key, shown once:[/] {key.secret}", soft_wrap=True)
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(file, "w") as stream:
            stream.write(f"{key.secret}\n")
    except OSError as error:
        raise QuicksilverError(
            f"cannot write the admin key to {path}: {error.strerror}; print a new secret with: "
            f"quicksilver keys rotate {key.id}"
        ) from error
    errors.print(f"the admin key is in {path}", markup=False, highlight=False, soft_wrap=True)
