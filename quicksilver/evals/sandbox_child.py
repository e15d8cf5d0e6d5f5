"""The child process of the sandbox: `python -I sandbox_child.py SECONDS [--probe] < program`.

It drops its own privileges, then runs the program from standard input as `__main__`. Exit status 0 means that the
program ended without an exception. With `--probe` the exit status tells whether a network namespace can be created.
This file imports nothing from the package.
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
    """Limit time, memory, file size, open files and processes. Hard limits are lowered too."""
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
    """Enter an empty network namespace, with a new user namespace if that is required. Returns whether it worked."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.unshare(_NEW_NET) == 0 or libc.unshare(_NEW_USER | _NEW_NET) == 0)
    except (OSError, AttributeError):
        return False


def refuse_sockets() -> None:
    """Fallback without namespaces: disable sockets in Python."""

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
        # A program that exits before its checks has not passed them.
        status = int(end.code or 0) if "--probe" in sys.argv else 1
    finally:
        os._exit(status)
