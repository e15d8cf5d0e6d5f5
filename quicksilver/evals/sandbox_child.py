"""The inside of the sandbox: `python -I sandbox_child.py SECONDS [--probe] < program`. Imports nothing of ours.

Takes its own rights away first, then runs the program from standard input as `__main__`. Exit status 0 means that the
program ended by itself and raised nothing; `--probe` only tells, the same way, whether the network can be taken away.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000
MEMORY_BYTES = 1 << 30
FILE_BYTES = 1 << 20


def bound(seconds: int) -> None:
    """Time, memory, file size, open files and processes, for good."""
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: MEMORY_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_NPROC: 64,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def leave_network() -> bool:
    """An empty network namespace where the kernel allows one; as a user of our own if that is what it takes."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.unshare(_NEW_NET) == 0 or libc.unshare(_NEW_USER | _NEW_NET) == 0)
    except (OSError, AttributeError):
        return False


def refuse_sockets() -> None:
    """What is left without namespaces: Python's own door shut."""

    def refused(*_args: object, **_named: object) -> None:
        raise OSError("no network here")

    socket.socket.connect = refused  # type: ignore[method-assign]
    socket.socket.bind = refused  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    is_offline = leave_network()
    if "--probe" in arguments:
        sys.exit(0 if is_offline else 1)
    if not is_offline:
        refuse_sockets()
    program = sys.stdin.buffer.read().decode("utf-8")
    bound(int(arguments[0]))
    exec(compile(program, "answer.py", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    status = 1
    try:
        main(sys.argv[1:])
        status = 0
    except SystemExit as end:
        # A program that leaves early, before its checks, has not passed them.
        status = int(end.code or 0) if "--probe" in sys.argv else 1
    finally:
        os._exit(status)
