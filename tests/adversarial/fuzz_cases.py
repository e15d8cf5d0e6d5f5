"""Random requests for every operation of an OpenAPI document, and random HTTP framing.

Most bodies follow the document's schema and have one or two faults; some are not JSON. Everything that varies comes
from the given random generator, so a case is repeated by its seed and number.
"""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

MODELS = ("nano", "mercury-2", "mercury-coder")
METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
MAX_DEPTH = 6
JSON, FORM = "application/json", "multipart/form-data"
ODD_TEXTS = (
    "", " ", "a", "\x00", "\u2028", "\ufeff", "\u00e9", "\u65e5\u672c", "\U0001f469\u200d\U0001f467", "\ud800",
    "\u200b", "../..", "%2e%2e", "<|im_end|>", "<think>", "null", "0", "-1", "1e309", "true", "a" * 300, "x" * 70_000,
    "' or 1=1 --", "{{7*7}}", "\r\nx-injected: y", "fail half way", "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>', "javascript:alert(1)", "'; drop table keys; --", "${7*7}", "$(reboot)",
)  # fmt: skip
ODD_NUMBERS = (0, -1, 1, 2, 0.5, -0.0, 1e308, -1e308, 2**31, 2**53, 2**63, -(2**63) - 1, 10**400)
ODD_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [{}] * 50)

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "nano", "prompt": "x"}}
FILES = (
    "",
    "x",
    "<html><script>alert(1)</script></html>",
    "\x00\x01",
    "{",
    "a\n" * 5000,
    json.dumps(LINE),
    "{}\n[]\n1",
)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, with its parameters and the schema of its body."""

    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    body: dict[str, Any] | None
    media_type: str = JSON

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"


@dataclass(frozen=True, slots=True)
class Case:
    """One request as bytes, cut into the pieces in which it is sent."""

    route: str
    pieces: tuple[bytes, ...]


def operations_of(document: dict[str, Any]) -> list[Operation]:
    found = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                content = operation.get("requestBody", {}).get("content", {})
                media_type, media = next(iter(content.items()), (JSON, None))
                schema = media.get("schema", {}) if media is not None else None
                parameters = (*methods.get("parameters", ()), *operation.get("parameters", ()))
                found.append(Operation(method, path, parameters, schema, media_type))
    return found


class CaseMaker:
    """`ids` holds ids that replies contained; paths are filled with them."""

    def __init__(self, document: dict[str, Any], rng: random.Random, ids: list[str]) -> None:
        self._document, self._rng, self._ids = document, rng, ids

    def request(self, operation: Operation, headers: dict[str, str]) -> Case:
        rng = self._rng
        path, lines = self._address(operation), dict(headers)
        if rng.random() < 0.05:
            lines["authorization"] = rng.choice(("", "Bearer", "Bearer qs-wrong", "Basic eDp4", "Bearer " + "k" * 5000))
        lines |= self._header_parameters(operation)
        body = b""
        if operation.body is not None:
            media_type, body = self._content(operation.body, operation.media_type)
            lines["content-type"] = media_type if rng.random() < 0.95 else rng.choice(("text/plain", "", "a/b;c", FORM))
        elif rng.random() < 0.1:
            body = b"{}"
        lines["content-length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if _is_header(value))
        method = operation.method.upper() if rng.random() < 0.97 else rng.choice(("GET", "POST", "PUT", "TRACE", "X"))
        start = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\r\n"
        return Case(operation.name, (start.encode("latin-1", "replace") + body,))

    def _address(self, operation: Operation) -> str:
        path, query = operation.path, []
        for parameter in operation.parameters:
            name, schema = parameter["name"], parameter.get("schema", {})
            if parameter["in"] == "path":
                path = path.replace("{" + name + "}", _quoted(self._path_value(schema)))
            elif parameter["in"] == "query" and self._rng.random() < 0.6:
                query.append(f"{quote(name)}={_quoted(_as_text(self.value(schema)))}")
        if self._rng.random() < 0.05:
            query.append(_quoted(self._text({})))
        return path[:20_000] + ("?" + "&".join(query)[:20_000] if query else "")

    def _path_value(self, schema: dict[str, Any]) -> str:
        if self._ids and self._rng.random() < 0.5:
            return self._rng.choice(self._ids)
        return _as_text(self.value(schema))[:2000] or "x"

    def _header_parameters(self, operation: Operation) -> dict[str, str]:
        given = [one for one in operation.parameters if one["in"] == "header" and self._rng.random() < 0.5]
        return {one["name"]: _as_text(self.value(one.get("schema", {}))) for one in given}

    def _content(self, schema: dict[str, Any], media_type: str) -> tuple[str, bytes]:
        """The content type and the bytes of a body."""
        if media_type != FORM:
            return media_type, self._body(schema)
        boundary = self._rng.choice(("fuzz", "fuzz", "fuzz", "-", "a b", "x" * 300))
        raw = self._form(schema, boundary)
        return f"{FORM}; boundary={boundary}", self._broken(raw) if self._rng.random() < 0.1 else raw

    def _form(self, schema: dict[str, Any], boundary: str) -> bytes:
        """A form with one part per property; a binary property is a file with an odd name now and then."""
        parts = b""
        for name, part in self._object(schema, 0).items():
            is_file = schema["properties"].get(name, {}).get("format") == "binary"
            file_name = f'; filename="{self._rng.choice(("a.jsonl", *ODD_TEXTS))[:200]}"' if is_file else ""
            value = self._rng.choice(FILES) if is_file else _as_text(part)
            head = f'--{boundary}\r\ncontent-disposition: form-data; name="{name}"{file_name}\r\n\r\n'
            parts += f"{head}{value}\r\n".encode("utf-8", "surrogatepass")
        return parts + f"--{boundary}--\r\n".encode()

    def _body(self, schema: dict[str, Any]) -> bytes:
        rng = self._rng
        value = self.value(schema)
        if isinstance(value, dict) and "model" in value and rng.random() < 0.97:
            value["model"] = rng.choice(MODELS)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
            value = self._with_fault(value)
        raw = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        return self._broken(raw) if rng.random() < 0.08 else raw

    def _broken(self, raw: bytes) -> bytes:
        rng = self._rng
        place = rng.randrange(len(raw) + 1)
        return rng.choice((
            raw[:place], b"", b"\xef\xbb\xbf" + raw, raw.decode("utf-8", "replace").encode("utf-16"),
            raw[:place] + rng.randbytes(3) + raw[place:], raw + raw, b"[" * 20_000, b'{"a":' * 20_000, b"NaN",
            b"1" * 6000, raw.replace(b":", b":NaN,", 1), b'{"model":"nano","model":"nano",' + raw[1:],
        ))  # fmt: skip

    def _with_fault(self, value: Any) -> Any:
        """The value with one node removed, replaced or added."""
        value = copy.deepcopy(value)
        parents = [node for node in _nodes(value) if isinstance(node, dict | list)]
        if not parents:
            return self._odd()
        parent = self._rng.choice(parents)
        keys: list[Any] = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        action = self._rng.random()
        if keys and action < 0.25:
            del parent[self._rng.choice(keys)]
        elif keys and action < 0.85:
            parent[self._rng.choice(keys)] = self._odd()
        elif isinstance(parent, dict):
            parent[self._text({})[:300]] = self._odd()
        else:
            parent += [self._odd()] * self._rng.choice((1, 1, 3000))
        return value

    def _odd(self) -> Any:
        rng = self._rng
        return copy.deepcopy(rng.choice((rng.choice(ODD_TEXTS), rng.choice(ODD_NUMBERS), rng.choice(ODD_VALUES))))

    def value(self, schema: dict[str, Any], depth: int = 0) -> Any:
        """A value that mostly follows the schema."""
        rng = self._rng
        if "$ref" in schema:
            return self.value(self._resolve(schema["$ref"]), depth + 1)
        if "const" in schema or "enum" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self.value(rng.choice(schema[word]), depth)
        if "allOf" in schema:
            parts = [self.value(part, depth) for part in schema["allOf"]]
            return {key: item for part in parts if isinstance(part, dict) for key, item in part.items()} or parts[0]
        kind = schema.get("type", rng.choice(("string", "object", "integer")))
        return self._of_kind(rng.choice(kind) if isinstance(kind, list) else kind, schema, depth)

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        rng = self._rng
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            low = schema.get("minItems", 0)
            size = low + (0 if depth > MAX_DEPTH else rng.choice((0, 1, 1, 2, 3)))
            return [self.value(schema.get("items", {}), depth + 1) for _ in range(min(size, 20))]
        if kind in ("integer", "number"):
            return self._number(schema, is_whole=kind == "integer")
        if kind in ("boolean", "null"):
            return rng.random() < 0.5 if kind == "boolean" else None
        return self._text(schema)

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required, found = schema.get("required", ()), {}
        for key, part in schema.get("properties", {}).items():
            chance = 1.0 if key in required else 0.0 if depth > MAX_DEPTH else 0.15 if depth else 0.2
            if self._rng.random() < chance:
                found[key] = self.value(part, depth + 1)
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth <= MAX_DEPTH and self._rng.random() < 0.5:
            found[self._text({})[:60]] = self.value(more, depth + 1)
        return found

    def _number(self, schema: dict[str, Any], *, is_whole: bool) -> float:
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 2**31)
        edges = (low, high, low - 1, high + 1, *ODD_NUMBERS)
        if self._rng.random() < 0.15:
            return self._rng.choice(edges)
        small = min(high, low + 64)
        return self._rng.randint(int(low), int(small)) if is_whole else self._rng.uniform(low, small)

    def _text(self, schema: dict[str, Any]) -> str:
        rng = self._rng
        if self._ids and rng.random() < 0.02:
            return rng.choice(self._ids)
        if rng.random() < 0.1:
            return rng.choice(ODD_TEXTS)
        size = rng.randint(
            schema.get("minLength", 0), min(schema.get("maxLength", 40), schema.get("minLength", 0) + 40)
        )
        return "".join(rng.choices(string.ascii_letters + " .\n", k=size))

    def _resolve(self, reference: str) -> dict[str, Any]:
        found = self._document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        return found


def framing_case(rng: random.Random, paths: list[str], headers: dict[str, str]) -> Case:
    """One to four requests with odd header lines, some bytes changed or cut, in pieces."""
    raw = bytearray(b"".join(_framed_request(rng, paths, headers) for _ in range(rng.randint(1, 4))))
    for _ in range(rng.choice((0, 0, 1, 3))):
        place = rng.randrange(len(raw))
        raw[place : place + rng.randint(0, 3)] = rng.choice((b"", b"\r", b"\n", b"\x00", b":", rng.randbytes(2)))
    if rng.random() < 0.3:
        del raw[rng.randint(1, len(raw)) :]
    places = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.choice((0, 1, 4))))
    pieces = [bytes(raw[a:b]) for a, b in zip([0, *places], [*places, len(raw)], strict=True)]
    return Case("HTTP framing", tuple(piece for piece in pieces if piece))


def _framed_request(rng: random.Random, paths: list[str], headers: dict[str, str]) -> bytes:
    body = rng.choice((b"{}", b'{"model":"nano","prompt":"x"}', rng.randbytes(rng.randint(0, 40)).hex().encode()))
    lines = [
        f"{rng.choice(('GET', 'POST', 'PUT', 'HEAD'))} {rng.choice(paths)} HTTP/1.{rng.choice('1110')}",
        "host: localhost",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items() if rng.random() < 0.7]
    lines += rng.sample(ODD_LINES, rng.randint(0, 2))
    if rng.random() < 0.5:
        lines.append(f"content-length: {rng.choice((len(body), len(body), len(body) + 1, '0' * 30, -1, '+2', '1,1'))}")
        tail = body
    elif rng.random() < 0.8:
        lines.append("transfer-encoding: chunked")
        tail = b"%x%s\r\n%s\r\n0\r\n" % (len(body), rng.choice((b"", b";a=b")), body) if body else b"0\r\n"
        tail += rng.choice((b"", b"x-trailer: 1\r\n", b"authorization: Bearer x\r\n")) + b"\r\n"
    else:
        tail = b""
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + tail


ODD_LINES = (
    "host: other.example",
    "connection: close",
    "connection: keep-alive, upgrade",
    "upgrade: h2c",
    "expect: 100-continue",
    "transfer-encoding: chunked",
    "transfer-encoding: gzip, chunked",
    "transfer-encoding: identity",
    "content-length: 3",
    "x-long: " + "v" * 300,
    "x-longer: " + "v" * 40_000,
    " folded: 1",
    "no colon",
    "authorization: Bearer other",
)


def _nodes(value: Any) -> Iterator[Any]:
    yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from _nodes(child)


def _quoted(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _is_header(value: str) -> bool:
    """Whether a header value keeps the framing valid; broken framing is a class of its own."""
    return not set(value) & {"\r", "\n", "\x00"} and value == value.strip()
