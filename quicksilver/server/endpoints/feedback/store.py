"""Accept, reject and ignore, kept as one JSON line each: the rows a later preference training starts from.

The file only grows up to a bound, since editors report without a key; beyond it reports are answered and dropped.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import orjson

from quicksilver.server.endpoints.feedback.wire import FeedbackBody

MAX_FILE_BYTES = 64 * 2**20


class FeedbackLog:
    def __init__(self, home: Path, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = home / "feedback.jsonl"
        self._max_bytes = max_bytes

    def append(self, body: FeedbackBody) -> bool:
        """Blocking. One write a line, so that lines of several processes do not mix."""
        line = orjson.dumps({"time": int(time.time()), **body.model_dump(exclude_none=True)}) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size + len(line) > self._max_bytes:
                return False
            os.write(handle, line)
        finally:
            os.close(handle)
        return True
