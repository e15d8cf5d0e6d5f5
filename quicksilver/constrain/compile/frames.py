"""The loop of a child process: its limits, and frames on its pipes. A frame is a 4-byte length and that many bytes.

An empty frame is a heartbeat and is answered by an empty frame.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import BinaryIO

HEADER = struct.Struct("<I")


def limit_memory(growth_bytes: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + growth_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


def serve_frames(requests: BinaryIO, replies: BinaryIO, limit_s: float, reply_to: Callable[[bytes], bytes]) -> None:
    """Runs until `requests` closes. The first frame is empty: the process is ready. The kernel ends the process with
    SIGPROF after `limit_s` of processor time for one request; 0 means no limit."""
    write_frame(replies, b"")
    while header := requests.read(HEADER.size):
        data = requests.read(*HEADER.unpack(header))
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        reply = reply_to(data) if data else b""
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(replies, reply)


def lower_priority() -> None:
    """Runs after the server's own work, and ignores Ctrl-C, which reaches the whole process group: the pool ends this
    process."""
    os.nice(10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
