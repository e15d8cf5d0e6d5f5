"""Log lines are JSON, one a record, with the fields a caller named."""

from __future__ import annotations

import json
import logging

import pytest

from quicksilver.server.http.logs import JsonLines, ReadableLines, log_to_stderr


def test_a_record_is_one_line_of_json() -> None:
    record = logging.makeLogRecord(
        {"name": "quicksilver.server", "levelname": "INFO", "msg": "request %s", "args": ("a\nb",)}
    )
    record.status, record.ms = 200, 1.5
    line = JsonLines().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["event"], told["level"], told["status"], told["ms"]) == ("request a\nb", "info", 200, 1.5)


def test_a_record_is_one_readable_line_on_a_terminal() -> None:
    record = logging.makeLogRecord({"name": "quicksilver.server", "levelname": "INFO", "msg": "request", "args": ()})
    record.route, record.status, record.reply_id = "/health", 200, None
    line = ReadableLines().format(record)
    assert line[8:] == " info    request route=/health status=200"


@pytest.mark.parametrize(
    ("form", "is_terminal", "is_json"),
    [("auto", False, True), ("auto", True, False), ("json", True, True), ("text", False, False)],
)
def test_the_form_follows_the_terminal_unless_it_is_set(
    monkeypatch: pytest.MonkeyPatch, form: str, is_terminal: bool, is_json: bool
) -> None:
    logger = logging.getLogger("quicksilver")
    before = logger.handlers, logger.level, logger.propagate
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    try:
        log_to_stderr("info", form)
        assert isinstance(logger.handlers[0].formatter, JsonLines) is is_json
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def test_our_loggers_write_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("quicksilver")
    before = logger.handlers, logger.level, logger.propagate
    try:
        log_to_stderr("info")
        logging.getLogger("quicksilver.server").info("request", extra={"route": "/health"})
        assert json.loads(capsys.readouterr().err)["route"] == "/health"
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
