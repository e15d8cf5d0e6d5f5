"""Answers the lines of a batch file without a server, and appends each answer to the output file when it is complete.

A second run with the same files continues: lines whose answer is in the output are skipped, and a last line that was
cut off is removed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import orjson
from starlette.types import ASGIApp

from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.batches.lines import answer_line, has_failed, read_lines
from quicksilver.server.endpoints.batches.wire import BatchLine
from quicksilver.server.http.guard import Caller


def open_lines(source: Path) -> list[BatchLine]:
    """Raises InvalidRequest with the first errors of the file."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}", param="source") from None
    lines, errors = read_lines(content)
    if errors:
        told = "; ".join(f"line {error['line']}: {error['message']}" for error in errors[:3])
        raise InvalidRequest(f"{source}: {told}", param="source")
    return lines


def remove_torn_line(target: Path) -> set[str]:
    """The custom ids that are answered in the file. A last line without its end was cut off and is removed."""
    if not target.exists():
        return set()
    content = target.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        target.write_bytes(whole)
    return set(_answered(whole, target))


def _answered(content: bytes, target: Path) -> Iterator[str]:
    for number, row in enumerate(content.splitlines(), start=1):
        try:
            yield orjson.loads(row)["custom_id"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise InvalidRequest(f"{target}: line {number} is no output of a batch", param="target") from None


async def answer_file(
    app: ASGIApp, lines: Sequence[BatchLine], target: IO[bytes], num_parallel: int, report: Callable[[bool], None]
) -> None:
    """`report` is called after each line with whether it failed."""
    left = deque(lines)

    async def work() -> None:
        while left:
            result = await answer_line(app, left.popleft(), {}, Caller())
            target.write(orjson.dumps(result) + b"\n")
            target.flush()
            report(has_failed(result))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(num_parallel, len(left))):
            group.create_task(work())
