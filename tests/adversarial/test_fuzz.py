"""A short run of the fuzzer in `fuzz.py`; `python -m tests.adversarial.fuzz --cases 100000` is the long one."""

from __future__ import annotations

import random

import pytest
from fastapi import FastAPI

from quicksilver.server.admin_app import build_admin_app
from tests.adversarial.fuzz import Summary, fuzz
from tests.adversarial.fuzz_cases import Case, CaseMaker, operations_of
from tests.server.conftest import shared_app
from tests.server.test_sweep import routes_of

# Pages of the playground, which have tests of their own, and the documents themselves.
NOT_FUZZED = {
    "GET /",
    "GET /assets/{name}",
    "GET /playground/about",
    "GET /playground/docs/{name}",
    "GET /openapi.json",
    "HEAD /openapi.json",
}
DOCUMENT = {
    "paths": {
        "/v1/things/{id}": {
            "post": {
                "parameters": [
                    {"name": "id", "in": "path", "schema": {"type": "string"}},
                    {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 9}},
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
            }
        }
    },
    "components": {
        "schemas": {
            "Thing": {
                "type": "object",
                "required": ["model"],
                "properties": {
                    "model": {"type": "string"},
                    "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}},
                },
            }
        }
    },
}


def apps() -> tuple[FastAPI, FastAPI]:
    return shared_app(), build_admin_app(shared_app().state.services)


def fuzzed_routes() -> set[str]:
    return {operation.name for app in apps() for operation in operations_of(app.openapi())}


def test_every_route_of_both_listeners_is_fuzzed() -> None:
    served = {f"{method} {path.replace(':path}', '}')}" for app in apps() for method, path in routes_of(app)}
    assert served - fuzzed_routes() == NOT_FUZZED


def test_a_form_has_the_boundary_of_its_content_type() -> None:
    operation = next(one for one in operations_of(apps()[0].openapi()) if one.name == "POST /v1/files")
    maker = CaseMaker(apps()[0].openapi(), random.Random(1), [])
    raws = [maker.request(operation, {}).pieces[0] for _ in range(200)]
    assert any(b"boundary=fuzz\r\n" in raw and b"\r\n\r\n--fuzz\r\n" in raw for raw in raws)
    assert any(b"<script>" in raw and b'name="purpose"' in raw for raw in raws)


def test_cases_are_made_from_the_document_and_repeat_with_the_seed() -> None:
    (operation,) = operations_of(DOCUMENT)
    assert operation.name == "POST /v1/things/{id}"
    runs = []
    for _ in range(2):
        maker = CaseMaker(DOCUMENT, random.Random(3), ["thing-1"])
        runs.append([maker.request(operation, {"authorization": "Bearer k"}) for _ in range(200)])
    assert runs[0] == runs[1]
    raws = [case.pieces[0] for case in runs[0]]
    assert any(b"POST /v1/things/thing-1" in raw for raw in raws)
    assert any(b"limit=" in raw for raw in raws)
    assert sum(b'"model": "nano"' in raw for raw in raws) > 20
    assert len(set(raws)) > 100


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (b'HTTP/1.1 500 Oops\r\n\r\n{"error": {}}', "undeclared_5xx"),
        (b'HTTP/1.1 400 Bad Request\r\n\r\n{"detail": 1}', "errors_without_envelope"),
        (b"HTTP/1.1 404 Not Found\r\n\r\nplain", "errors_without_envelope"),
        (b"HTTP/1.1 200 OK\r\n\r\n{}", "unsafe_replies"),
        (b"HTTP/1.1 200 OK\r\nx-content-type-options: nosniff\r\ncontent-type: text/html\r\n\r\n", "unsafe_replies"),
        (b"HTTP/1.1 200 OK\r\nx-content-type-options: nosniff\r\nx-injected: y\r\n\r\n{}", "unsafe_replies"),
    ],
)
def test_faults_are_counted(reply: bytes, fault: str) -> None:
    summary = Summary()
    busy = b'HTTP/1.1 503 Busy\r\nx-content-type-options: nosniff\r\n\r\n{"error": {}}'
    summary.add(Case("GET /", (b"GET / HTTP/1.1",)), busy, 0.1, is_hung=False)
    assert summary.report(1, 1.0)["is_sound"]
    summary.add(Case("GET /", (b"GET / HTTP/1.1",)), reply, 0.1, is_hung=False)
    report = summary.report(1, 1.0)
    assert report[fault] == 1
    assert not report["is_sound"]


@pytest.mark.contract
@pytest.mark.timeout(300)
def test_fifteen_hundred_cases_find_no_fault() -> None:
    report = fuzz(1500, seed=2)
    assert report["is_sound"], report["examples"]
    assert report["cases"] >= 1500
    assert report["statuses"]["200"] > 100
    covered = report["cases_by_route"]
    assert set(covered) == {*fuzzed_routes(), "HTTP framing"}
    assert min(covered.values()) >= 3
