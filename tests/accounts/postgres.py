"""A real PostgreSQL for tests, started from the machine's own binaries and thrown away afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


def find_binaries() -> Path | None:
    """The newest PostgreSQL of this machine, or None."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next(reversed(_INSTALLED), None)


@contextmanager
def running_postgres(binaries: Path, settings: str = "") -> Iterator[str]:
    """A fresh server on a unix socket only; yields the URL of its `postgres` database.

    `settings` are server options such as `-c fsync=off`, with which only a power cut could lose a commit.
    """
    folder = Path(tempfile.mkdtemp(prefix="qs-pg-"))
    as_user = _prefix(folder)
    data, log = folder / "data", folder / "log"
    try:
        _run([*as_user, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])
        options = f"-k {folder} -c listen_addresses='' -c max_connections=60 {settings}"
        control = [*as_user, binaries / "pg_ctl", "-D", data]
        _run([*control, "-l", log, "-o", options, "-w", "start"])
        try:
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            _run([*control, "-m", "immediate", "-w", "stop"])
    finally:
        shutil.rmtree(folder)


def _prefix(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: then it runs as `postgres` or `nobody`."""
    if os.geteuid():
        return []
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = "postgres" if "postgres" in names else "nobody"
    shutil.chown(folder, user)
    return ["runuser", "-u", user, "--"]


def _run(command: list[str | Path]) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, cwd="/")


def main(command: list[str]) -> int:
    """`python -m tests.accounts.postgres COMMAND …`: run it with `{url}` replaced by the address of a fresh server."""
    binaries = find_binaries()
    if binaries is None:
        sys.exit("PostgreSQL's server programs are not installed")
    with running_postgres(binaries) as url:
        return subprocess.run([word.replace("{url}", url) for word in command]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
