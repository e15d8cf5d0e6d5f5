"""Logs as one JSON object per line on standard error. Prompts, answers and keys are never logged."""

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


def log_to_stderr(level: str) -> None:
    """Logs records of the server from `level` on, and warnings of uvicorn; nothing else."""
    out = logging.StreamHandler(sys.stderr)
    out.setFormatter(JsonLines())
    for name, least in (("quicksilver", level), ("uvicorn", "warning")):
        logger = logging.getLogger(name)
        logger.handlers = [out]
        logger.setLevel(least.upper())
        logger.propagate = False
