"""Logs on standard error: one JSON object per line, or one readable line on a terminal. Prompts, answers and keys are
never logged."""

from __future__ import annotations

import logging
import sys
import time

import orjson

PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in PLAIN},
        }
        return orjson.dumps(line, default=str).decode()


class ReadableLines(logging.Formatter):
    """Time, level, event and the fields as `name=value`, for a person at a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: value for name, value in vars(record).items() if name not in PLAIN and value is not None}
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        return f"{clock} {record.levelname.lower():7} {record.getMessage()} {shown}".rstrip()


def log_to_stderr(level: str, form: str = "auto") -> None:
    """Logs records of the server from `level` on, warnings of uvicorn and errors of OpenTelemetry; nothing
    else.

    `form` is json, text, or auto: text if standard error is a terminal.
    """
    out = logging.StreamHandler(sys.stderr)
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    out.setFormatter(ReadableLines() if is_text else JsonLines())
    for name, least in (("quicksilver", level), ("uvicorn", "warning"), ("opentelemetry", "error")):
        logger = logging.getLogger(name)
        logger.handlers = [out]
        logger.setLevel(least.upper())
        logger.propagate = False
