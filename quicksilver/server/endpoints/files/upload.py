"""Reads a `multipart/form-data` body with one file as it arrives; large files go to a temporary file, not to memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.message import Message
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from quicksilver.errors import InvalidRequest
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.body import BodyClock, check_announced, too_large

# Kept in memory before a file is moved to disk.
SPOOL_BYTES = 2**20
MAX_FIELD_BYTES = 4096
MAX_PARTS = 32
# Longest boundary by RFC 2046.
MAX_BOUNDARY_BYTES = 70
# Bytes of an upload besides the file: headers, boundaries and the other fields.
OVERHEAD_BYTES = 2**17


@dataclass
class Upload:
    """The parts of one form."""

    content: IO[bytes] = field(default_factory=lambda: SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115
    filename: str | None = None
    num_bytes: int = 0
    fields: dict[str, str] = field(default_factory=dict)


class FormReader:
    """Collects the parts that the parser reports."""

    def __init__(self, boundary: bytes) -> None:
        self.upload = Upload()
        self._header_name = b""
        self._header_value = b""
        self._headers = Message()
        self._name = ""
        self._is_file = False
        self._text = b""
        self._num_parts = 0
        self.is_complete = False
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers_finished,
            "on_part_data": self._on_data,
            "on_part_end": self._on_end,
            "on_end": self._on_complete,
        }
        self.parser = MultipartParser(boundary, callbacks)

    def _begin(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"The form has more than {MAX_PARTS} parts.")
        self._headers, self._text = Message(), b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        self._headers[self._header_name.decode("latin-1").lower()] = self._header_value.decode("latin-1")
        self._header_name = self._header_value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", ""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._is_file = self._name == "file"
        if self._is_file:
            if self.upload.filename is not None:
                raise InvalidRequest("file: there is more than one", param="file")
            self.upload.filename = options.get(b"filename", b"upload").decode("utf-8", "replace")[:255]

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.upload.content.write(data[start:end])
            self.upload.num_bytes += end - start
        else:
            self._text += data[start:end]
            if len(self._text) > MAX_FIELD_BYTES:
                raise InvalidRequest(f"{self._name[:64]}: longer than {MAX_FIELD_BYTES} bytes", param=self._name[:64])

    def _on_end(self) -> None:
        if not self._is_file:
            self.upload.fields[self._name] = self._text.decode("utf-8", "replace")

    def _on_complete(self) -> None:
        self.is_complete = True


@asynccontextmanager
async def read_upload(request: Request, config: ServerConfig) -> AsyncIterator[Upload]:
    """The form, whose file is open inside the block."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY_BYTES:
        raise InvalidRequest("The body must be multipart/form-data with a file.", param="file")
    check_announced(request, config.file_bytes + OVERHEAD_BYTES)
    form = FormReader(boundary)
    with form.upload.content:
        await _read_form(form, request, config)
        yield form.upload


async def _read_form(form: FormReader, request: Request, config: ServerConfig) -> None:
    clock, num_received, has_more = BodyClock(config.timeouts), 0, True
    try:
        while has_more:
            message = await clock.receive(request, num_received)
            data, has_more = message.get("body", b""), message.get("more_body", False)
            num_received += len(data)
            if num_received > config.file_bytes + OVERHEAD_BYTES:
                raise too_large(config.file_bytes)
            form.parser.write(data)
        form.parser.finalize()
    except FormParserError:
        raise InvalidRequest("The form cannot be read.", param="file") from None
    if not form.is_complete or form.upload.filename is None:
        raise InvalidRequest("file: the form has no file, or ends before it does", param="file")
    if form.upload.num_bytes > config.file_bytes:
        raise too_large(config.file_bytes)
