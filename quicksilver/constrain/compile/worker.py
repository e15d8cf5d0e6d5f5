"""One compile process: reads sources from stdin, writes outcomes to stdout, and may be killed at any moment.

Run by `pool` as `python -m quicksilver.constrain.compile.worker MEMORY_BYTES`. Frames are a length and JSON. After its
imports the process gives up the right to grow by more than MEMORY_BYTES; what goes beyond ends it.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.source import SpecSource, ToolPlan, decode
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar

HEADER = struct.Struct("!I")


class Outcome(msgspec.Struct, frozen=True):
    """A constraint, or why there is none."""

    grammar: str = ""
    needs_check: bool = False
    error: str = ""


def compile_source(source: SpecSource) -> ConstraintSpec:
    return compile_tools(source) if isinstance(source, ToolPlan) else compile_response_format(source)


def answer(data: bytes) -> Outcome:
    """The outcome for one source. A fault of the compiler is a fault of the source."""
    try:
        spec = compile_source(decode(data))
    except InvalidGrammar as error:
        return Outcome(error=error.message)
    except (MemoryError, RecursionError):
        return Outcome(error="The schema needs too much memory to compile.")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return Outcome(error=f"The schema cannot be read: {type(error).__name__}: {str(error)[:200]}.")
    return Outcome(spec.grammar, spec.needs_check)


def limit_memory(growth_bytes: int) -> None:
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + growth_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def serve(requests: BinaryIO, outcomes: BinaryIO) -> None:
    """Until stdin closes; the first frame out says that the process is ready."""
    write_frame(outcomes, b"{}")
    while header := requests.read(HEADER.size):
        write_frame(outcomes, msgspec.json.encode(answer(requests.read(*HEADER.unpack(header)))))


def write_frame(stream: BinaryIO, data: bytes) -> None:
    stream.write(HEADER.pack(len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    os.nice(5)
    # Ctrl-C reaches the whole group; the pool ends this process by closing its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer)
