"""A temporary PostgreSQL server for tests, from the binaries of the machine."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_INSTALLED = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))


def find_binaries() -> Path | None:
    """The newest PostgreSQL of this machine, or None."""
    found = shutil.which("initdb")
    return Path(found).parent if found else next(reversed(_INSTALLED), None)


class PostgresServer:
    """A server in a temporary folder, on a unix socket only. `settings` are options such as `-c fsync=off`."""

    def __init__(self, binaries: Path, settings: str = "") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="qs-pg-"))
        self._as_user = _prefix(self._folder)
        self._binaries = binaries
        self._options = f"-k {self._folder} -c listen_addresses='' -c max_connections=60 {settings}"
        options = ("-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8")
        _run([*self._as_user, binaries / "initdb", "-D", self._data, *options])
        # The URL of the database `postgres`.
        self.url = f"postgresql://postgres@/postgres?host={self._folder}"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        self._control("-l", self._folder / "log", "-o", self._options, "-w", "start")

    def stop(self) -> None:
        self._control("-m", "immediate", "-w", "stop")

    def kill(self) -> None:
        """SIGKILL to the postmaster and all its processes; returns when they are gone."""
        postmaster = int((self._data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # so that it starts no further process
        pids = [postmaster, *_children_of(postmaster)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_is_running(pid) for pid in pids):
            time.sleep(0.01)
        # Where no init process reaps the postmaster, its id still exists and its lock files would block a restart.
        for lock in (self._data / "postmaster.pid", self._folder / ".s.PGSQL.5432.lock"):
            lock.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self._folder)

    def _control(self, *arguments: str | Path) -> None:
        _run([*self._as_user, self._binaries / "pg_ctl", "-D", self._data, *arguments])


@contextmanager
def running_postgres(binaries: Path, settings: str = "") -> Iterator[str]:
    """A fresh server; yields the URL of its database `postgres`."""
    server = PostgresServer(binaries, settings)
    try:
        server.start()
        try:
            yield server.url
        finally:
            server.stop()
    finally:
        server.remove()


def _stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children_of(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [pid for pid in pids if _stat_of(pid)[1:2] == [str(parent)]]


def _is_running(pid: int) -> bool:
    return _stat_of(pid)[:1] not in ([], ["Z"])


def _prefix(folder: Path) -> list[str]:
    """PostgreSQL does not run as root; then it runs as `postgres` or `nobody`."""
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
