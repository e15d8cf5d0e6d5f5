"""A small Hugging Face hub on loopback: model info, and files with ranges. It records the requests that it answers."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMITS = {"main": "a" * 40, "old": "b" * 40}


@dataclass
class Hub:
    """Repositories by name, each a dict of file contents; the branch `old` has the same files."""

    repos: dict[str, dict[str, bytes]]
    token: str = ""  # if set, required
    cut_after: int = 0  # if set, the next download of a weight file is cut after so many bytes
    url: str = ""
    requests: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    @property
    def fetched(self) -> set[str]:
        return {line.rsplit("/", 1)[1] for line in self.requests if line.startswith("GET") and "/resolve/" in line}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._refuse(401, "GatedRepo")
        info = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        found = info or file
        if found is None or found[1] not in self.hub.repos:
            return self._refuse(404, "RepoNotFound")
        commit = COMMITS.get(found[2] or "main", found[2])
        if commit not in COMMITS.values():
            return self._refuse(404, "RevisionNotFound")
        files = self.hub.repos[found[1]]
        if info:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            body = json.dumps({"id": found[1], "sha": commit, "siblings": siblings}).encode()
            return self._send(200, body, {"Content-Type": "application/json"}, with_body=True)
        assert file is not None
        if file[3] not in files:
            return self._refuse(404, "EntryNotFound")
        return self._send_file(files[file[3]], str(commit), file[3], with_body=with_body)

    def _send_file(self, data: bytes, commit: str, name: str, *, with_body: bool) -> None:
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if wanted is None:
            return self._send(200, data, headers, with_body=with_body, name=name)
        self.hub.ranges.append(wanted[0])
        start = int(wanted[1])
        headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self._send(206, data[start:], headers, with_body=with_body, name=name)

    def _send(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool, name: str = "") -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.hub.cut_after and name.endswith(".safetensors"):
            self.wfile.write(body[: self.hub.cut_after])
            self.hub.cut_after, self.close_connection = 0, True
        elif with_body:
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", {"X-Error-Code": code}, with_body=True)


@contextmanager
def serve_hub(repos: dict[str, dict[str, bytes]]) -> Iterator[Hub]:
    hub = Hub(repos)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
