"""Every route over a real socket without a key, with a bad one and with every trick: only the listed ones answer."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import OPERATOR, Scope
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import open_admin
from quicksilver.server.admin_app import build_admin_app
from tests.server.conftest import shared_app
from tests.server.paid_server import PaidServer

LIST = Path(__file__).parents[2] / "docs" / "reference" / "public-routes.txt"
BAD_KEYS = (
    "Bearer",
    "Bearer qs-wrong",
    "Bearer qs-" + "A" * 43,
    "Basic cXM6cXM=",
    "Bearer ' OR 1=1 --",
    "bearer\tqs-x",
    "Bearer " + "x" * 5000,
)
# The first three rewrite the path in frameworks that rebuild a URL from the Host header.
ODD_HOSTS = (
    "localhost/health?",
    "localhost:80/health#",
    "localhost\\@health",
    "evil.example",
    "localhost.evil.example",
    "localhost@evil.example",
    "",
    "[::1",
    "127.0.0.1:99999999",
)
REFUSED = {400, 401, 403, 404, 405, 421, 431}


def public_routes(listener: str) -> set[tuple[str, str]]:
    lines = [line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#")]
    return {(method, path) for name, method, path in lines if name == listener}


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Every method and path of the app, hidden ones included."""

    def walk(routes: list[Any], prefix: str) -> Iterator[tuple[str, str]]:
        for route in routes:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                yield from walk(inner.routes, prefix)
            else:
                yield from ((method, prefix + route.path) for method in route.methods)

    return set(walk(app.routes, ""))


def concrete(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "x", path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaidServer]:
    home = tmp_path_factory.mktemp("home")
    server = PaidServer(home, home / "log").start().wait_ready()
    yield server
    assert server.stop() == 0


def raw(port: int, target: str, *headers: str, method: str = "GET") -> tuple[int, bytes]:
    """One request written by hand, so that no client library tidies it up."""
    lines = (f"{method} {target} HTTP/1.1", *headers, "content-length: 2", "connection: close", "", "{}")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall("\r\n".join(lines).encode("latin-1"))
        reply = b""
        while piece := link.recv(65536):
            reply += piece
    return int(reply.split(b" ", 2)[1]), reply


def listeners(server: PaidServer) -> tuple[tuple[str, int, FastAPI], ...]:
    return (
        ("main", server.port, shared_app()),
        ("admin", server.admin_port, build_admin_app(shared_app().state.services)),
    )


def test_every_route_but_the_listed_ones_refuses_a_missing_or_bad_key(server: PaidServer) -> None:
    for name, port, app in listeners(server):
        public = public_routes(name)
        known = routes_of(app)
        assert public <= known, "the list names a route that is not there"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            for method, path in sorted(known):
                keys = [{}, *({"authorization": key} for key in BAD_KEYS)]
                found = {client.request(method, concrete(path), content=b"{}", headers=key).status_code for key in keys}
                is_open = bool(found - {401})
                assert is_open is ((method, path) in public), (name, method, path, found)


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_host_header_opens_nothing(server: PaidServer, host: str) -> None:
    for port, path in ((server.port, "/v1/models"), (server.admin_port, "/v1/organizations")):
        status, _ = raw(port, path, f"host: {host}")
        assert status in REFUSED
        status, _ = raw(port, path, "host: localhost", f"x-forwarded-host: {host}", f"x-host: {host}")
        assert status == 401


@pytest.mark.parametrize(
    "form",
    [
        "/{}",
        "//{}",
        "/./{}",
        "/health/../{}",
        "/health/..;/{}",
        "/health%2f..%2f{}",
        "/health/%2e%2e/{}",
        "/%2e/{}",
        "/;/{}",
        "/{}/",
        "/{}/.",
        "/{};a=b",
        "/{}?/health",
        "/{}#/health",
        "/{}%00",
        "/{}%20",
        "/{}%2f",
        "http://localhost/{}",
        "http://localhost/health/../{}",
        "http://evil.example/{}",
        "/assets/../{}",
        "/assets/%2e%2e%2f{}",
        "/playground/about/../../{}",
    ],
)
def test_no_spelling_of_a_path_opens_it(server: PaidServer, form: str) -> None:
    targets = {
        server.port: ("v1/models", "v1/account", "v1/chat/completions", "v1/organization/costs", "V1/models"),
        server.admin_port: ("v1/organizations", "metrics", "v1/organization/admin_api_keys", "%76%31/organizations"),
    }
    for port, paths in targets.items():
        for path in paths:
            for method in ("GET", "POST", "HEAD"):
                status, reply = raw(port, form.format(path), "host: localhost", method=method)
                assert status in REFUSED, (method, form.format(path), reply[:300])


@pytest.mark.parametrize(
    "method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "PATCH", "DELETE", "GET", "FOO", "get"]
)
def test_no_method_opens_a_path(server: PaidServer, method: str) -> None:
    for port, path in ((server.port, "/v1/models"), (server.port, "/v1/account"), (server.admin_port, "/metrics")):
        status, _ = raw(port, path, "host: localhost", method=method)
        assert status in REFUSED


@pytest.mark.parametrize(
    "header",
    [
        "x-http-method-override: GET",
        "x-original-url: /health",
        "x-rewrite-url: /health",
        "x-forwarded-prefix: /health",
        "x-forwarded-for: 127.0.0.1",
        "x-real-ip: 127.0.0.1",
        "forwarded: for=127.0.0.1",
        "x-api-key: qs-x",
        "cookie: key=qs-x",
        "authorization: Bearer a\r\nauthorization: Bearer b",
    ],
)
def test_no_header_opens_a_path(server: PaidServer, header: str) -> None:
    for port, path in ((server.port, "/v1/models"), (server.port, "/v1/account/keys"), (server.admin_port, "/metrics")):
        status, _ = raw(port, path, "host: localhost", header)
        assert status in {400, 401}


def test_a_key_in_the_url_is_no_key(server: PaidServer) -> None:
    admin = open_admin(server.database, AccountsConfig(pepper_path=server.home / "pepper"))
    org = admin.organizations.create_org(OPERATOR, "acme")
    project = admin.organizations.list_accounts(OPERATOR, "project", org.id)[0]
    key = admin.keys.create_key(OPERATOR, KeyDraft("k", project.id, frozenset(Scope)))
    admin.store.close()
    for name in ("key", "api_key", "token", "access_token", "authorization"):
        assert raw(server.port, f"/v1/models?{name}={key.secret}", "host: localhost")[0] == 401
    assert raw(server.port, "/v1/models", "host: localhost", f"authorization: Bearer {key.secret}")[0] == 200
    assert raw(server.admin_port, "/metrics", "host: localhost", f"authorization: Bearer {key.secret}")[0] == 200
