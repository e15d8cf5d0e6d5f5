"""The lines of a batch: reading them, answering one by calling the application in this process, and writing results.

A call passes the same checks as one from outside, except that its key was checked when the batch was created.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.types import ASGIApp, Message

from quicksilver.errors import QuicksilverError
from quicksilver.server.endpoints.batches.wire import ENDPOINTS, MAX_LINES, BatchLine
from quicksilver.server.http.body import parse_body
from quicksilver.server.http.errors import envelope_for
from quicksilver.server.http.guard import BATCH_CALLER, Caller

# Listed in a batch that fails.
MAX_ERRORS = 20
# Statuses after which a line is sent again: a reservation that is still open, a limit, an engine that restarts.
RETRIED = (409, 429, 503)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0


def read_lines(content: bytes, endpoint: str | None = None) -> tuple[list[BatchLine], list[dict[str, Any]]]:
    """The lines, and what is wrong with them: code, message, line number and parameter of each error. Without
    `endpoint` each line may have another one."""
    allowed = ENDPOINTS if endpoint is None else (endpoint,)
    rows = [row for row in enumerate(content.split(b"\n"), start=1) if row[1].strip()]
    if not rows:
        return [], [_error("empty_file", "The input file has no lines.", None)]
    if len(rows) > MAX_LINES:
        return [], [_error("too_many_lines", f"A batch has at most {MAX_LINES} lines.", None)]
    lines: list[BatchLine] = []
    errors: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, raw in rows:
        if len(errors) >= MAX_ERRORS:
            break
        try:
            line = parse_body(raw, BatchLine)
        except QuicksilverError as error:
            errors.append(_error("invalid_line", error.message, number, error.param))
            continue
        if line.url not in allowed:
            errors.append(_error("mismatched_endpoint", f"The url is not {' or '.join(allowed)}.", number, "url"))
        elif line.body.get("stream"):
            errors.append(_error("invalid_line", "body.stream: a batch is not streamed", number, "body.stream"))
        elif line.body.get("background"):
            message = "body.background: a batch waits for its answers"
            errors.append(_error("invalid_line", message, number, "body.background"))
        elif line.custom_id in seen:
            errors.append(_error("duplicate_custom_id", "This custom_id comes twice.", number, "custom_id"))
        seen.add(line.custom_id)
        lines.append(line)
    return lines, errors


def _error(code: str, message: str, line: int | None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "message": message, "line": line, "param": param}


async def call_app(
    app: ASGIApp, path: str, body: bytes, headers: Mapping[str, str], caller: Caller
) -> tuple[int, bytes, str]:
    """Status, body and request id of the reply."""
    given = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": None,
        "server": ("localhost", 0),
        BATCH_CALLER: caller,
    }
    received, sent, never = [body], list[Message](), asyncio.Event()

    async def receive() -> Message:
        if received:
            return {"type": "http.request", "body": received.pop(), "more_body": False}
        await never.wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    head = sent[0]
    ids = [value.decode() for name, value in head["headers"] if name == b"x-request-id"]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    return head["status"], content, ids[0] if ids else f"req_{uuid.uuid4().hex}"


async def answer_line(app: ASGIApp, line: BatchLine, headers: Mapping[str, str], caller: Caller) -> dict[str, Any]:
    """The output line. What may succeed later is sent again, until the task is cancelled."""
    body, pause_s = orjson.dumps(line.body), FIRST_PAUSE_S
    while True:
        status, content, request_id = await call_app(app, line.url, body, headers, caller)
        reply = orjson.loads(content)
        if status not in RETRIED or _is_final(reply):
            return write_line(line.custom_id, status, reply, request_id)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _is_final(reply: Any) -> bool:
    error = reply.get("error") if isinstance(reply, dict) else None
    return isinstance(error, dict) and (
        # As OpenAI and as Anthropic write it.
        error.get("code") == "insufficient_quota" or error.get("type") == "billing_error"
    )


def refuse_line(line: BatchLine, error: QuicksilverError) -> dict[str, Any]:
    """The output line of a line that is not sent."""
    return write_line(line.custom_id, error.status, envelope_for(line.url, error), f"req_{uuid.uuid4().hex}")


def write_line(custom_id: str, status: int, reply: Any, request_id: str) -> dict[str, Any]:
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": custom_id,
        "response": {"status_code": status, "request_id": request_id, "body": reply},
        "error": None,
    }


def has_failed(line: Mapping[str, Any]) -> bool:
    return bool(line["response"] is None or line["response"]["status_code"] >= 400)
