"""The program of a compile process: reads sources from stdin and writes outcomes to stdout.

Started by `process` as `python -m quicksilver.constrain.compile.worker MEMORY_BYTES LIMIT_S`. A frame is a 4-byte
length and JSON, since a schema may hold integers that msgpack cannot. An empty frame is a heartbeat and is answered by
an empty frame. The kernel enforces both limits: it kills the process with SIGPROF after LIMIT_S of processor time for
one source, and refuses allocations that add more than MEMORY_BYTES to the address space.
"""

from __future__ import annotations

import sys
from typing import BinaryIO

import msgspec

from quicksilver.constrain.compile.frames import limit_memory, lower_priority, serve_frames
from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.compile.tools import compile_tools
from quicksilver.constrain.source import GrammarSource, ToolCallFormat, decode
from quicksilver.core import ConstraintSpec
from quicksilver.errors import InvalidGrammar


class Outcome(msgspec.Struct, frozen=True):
    """A constraint, or the reason why the source is refused."""

    grammar: str = ""
    needs_validation: bool = False
    error: str = ""


def compile_source(source: GrammarSource) -> ConstraintSpec:
    return compile_tools(source) if isinstance(source, ToolCallFormat) else compile_response_format(source)


def outcome_of(data: bytes) -> Outcome:
    """The outcome for one encoded source. An exception in the compiler is a refusal of the source."""
    try:
        spec = compile_source(decode(data))
    except InvalidGrammar as error:
        return Outcome(error=error.message)
    except (MemoryError, RecursionError):
        return Outcome(error="The schema or grammar needs too much memory to compile.")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return Outcome(error=f"The schema or grammar cannot be read: {type(error).__name__}: {str(error)[:200]}.")
    return Outcome(spec.grammar, spec.needs_validation)


def serve(requests: BinaryIO, outcomes: BinaryIO, limit_s: float = 0.0) -> None:
    serve_frames(requests, outcomes, limit_s, lambda data: msgspec.json.encode(outcome_of(data)))


if __name__ == "__main__":
    lower_priority()
    limit_memory(int(sys.argv[1]))
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[2]))
