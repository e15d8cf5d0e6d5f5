"""RouteApp: the router as an ASGI application. Each request goes to one server, and its reply is passed on as it comes.

A request is sent to another server only if no byte of a reply has reached the client: after a failed connection, after
a 503, and after a connection that broke before the reply, if the request has an idempotency key or costs nothing. A
server charges a request whose reader is gone, so other requests are not sent twice. Once a reply has
begun, a failure of the server ends it with an error event, or cuts it off if it is not an event stream. A client that
disconnects ends the request at the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from quicksilver.cluster.proxy.config import AffinityMode, RouteConfig
from quicksilver.cluster.proxy.connection import ReplyHead, ServerConnection, ServerFailed, ServerTimedOut
from quicksilver.cluster.proxy.headers import check_hops, reply_headers, request_head
from quicksilver.cluster.proxy.metrics import RouteMetrics
from quicksilver.cluster.proxy.request_body import RequestBody
from quicksilver.cluster.proxy.server_state import RoutedServer, ServerHealth
from quicksilver.cluster.routing.affinity import Replica, digest, first_choice, rank
from quicksilver.cluster.routing.prompt_prefix import affinity_keys
from quicksilver.errors import QuicksilverError, Unavailable
from quicksilver.server.config import ServerConfig
from quicksilver.server.http.body import data_event, named_event
from quicksilver.server.http.connections import TRUST
from quicksilver.server.http.errors import envelope_for, error_response
from quicksilver.server.http.guard import CLIENT_CLOSED, as_refusal, check_headers, check_host, check_origin
from quicksilver.server.http.request_record import OpenRequests

log = logging.getLogger("quicksilver.route")

REPEATABLE_METHODS = ("GET", "HEAD")
# POST requests that change nothing and are not charged, so they may be sent twice.
REPEATABLE_POSTS = ("/v1/messages/count_tokens", "/tokenize", "/detokenize")
# Paths that servers with accounts answer only to callers with a valid key.
KEYED_PREFIXES = ("/v1/", "/api/")
KEYED_PATHS = ("/tokenize", "/detokenize", "/infill")
# Longest body of a 503 that is kept, to be passed on if no other server answers.
MAX_REFUSAL_BYTES = 64 * 2**10


class ServerError(QuicksilverError):
    """The server failed while it answered this request."""

    status = 502
    code = "server_failed"


@dataclass(slots=True)
class Exchange:
    """One request at one server. `head` is set when the reply has begun."""

    server: RoutedServer
    connection: ServerConnection
    head: ReplyHead | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A 503 of a server, which is passed on if no other server answers."""

    head: ReplyHead
    content: bytes
    server: RoutedServer


@dataclass(slots=True)
class RouteRecord:
    """What is logged about one request."""

    id: str = field(default_factory=lambda: f"req_{uuid.uuid4().hex}")
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    server: str | None = None
    retries: int = 0

    def write(self) -> None:
        ms = round((time.perf_counter() - self.started) * 1000, 1)
        fields = {"request_id": self.id, "status": self.status, "ms": ms}
        log.info("request", extra={**fields, "server": self.server, "retries": self.retries})


class RouteApp:
    def __init__(self, servers: Sequence[RoutedServer], config: RouteConfig, listener: ServerConfig) -> None:
        self.servers = {server.name: server for server in servers}
        self.config = config
        self.listener = listener
        self.metrics = RouteMetrics()
        self.open_requests = OpenRequests()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RouteRecord()
        with self.open_requests.counted():
            try:
                await self._answer(scope, receive, send, record)
            except ClientDisconnect:
                record.status = record.status or CLIENT_CLOSED
            except Exception as error:
                refusal = as_refusal(error, record.id)
                if record.status is not None:
                    # The reply has begun; the listener closes a connection whose reply is not complete.
                    return
                record.status = refusal.status
                headers = {"x-request-id": record.id, "connection": "close"}
                await error_response(refusal, headers, scope["path"])(scope, receive, send)
            finally:
                record.write()

    async def _answer(self, scope: Scope, receive: Receive, send: Send, record: RouteRecord) -> None:
        headers = Headers(scope=scope)
        check_headers(scope, self.listener)
        host = check_host(headers, self.listener)
        check_origin(headers, host, self.listener)
        check_hops(scope["headers"])
        if scope["path"] in ("/health", "/ready"):
            reply = self._probe(scope["path"])
            record.status = reply.status_code
            await reply(scope, receive, send)
            return
        self._check_capacity()
        body = RequestBody(Request(scope, receive), self.listener, self.config.buffer_bytes)
        await body.read()
        is_same_origin = headers.get("origin") in (f"http://{host}", f"https://{host}")
        await Routing(self, scope, receive, body, record, is_same_origin=is_same_origin).run(send)

    def _check_capacity(self) -> None:
        if self.open_requests.is_draining:
            raise Unavailable("This router is shutting down.", code="draining")
        if self.open_requests.num_open > self.listener.max_open:
            raise Unavailable("Too many requests are open here.", code="server_overloaded")

    def _probe(self, path: str) -> Response:
        """`/health`: this process answers. `/ready`: a server can take a request."""
        if path == "/health":
            return JSONResponse({"status": "ok"})
        if self.open_requests.is_draining:
            return JSONResponse({"status": "draining"}, 503, {"retry-after": "1"})
        if not any(server.is_available for server in self.servers.values()):
            return JSONResponse({"status": "no_server"}, 503, {"retry-after": "1"})
        running = sum(server.num_open for server in self.servers.values())
        return JSONResponse({"status": "ready", "running": running, "waiting": 0})

    def keys(self, scope: Scope, body: RequestBody) -> list[bytes]:
        """What keeps the request on one server; see `routing.affinity`."""
        headers = Headers(scope=scope)
        salt = (headers.get("authorization") or headers.get("x-api-key") or "").encode()
        if self.config.affinity is AffinityMode.KEY:
            return [digest(salt, b"")]
        return affinity_keys(salt, body.leading) if scope["method"] == "POST" else []

    def pick(self, keys: Sequence[bytes], tried: set[str]) -> RoutedServer | None:
        """The best server that was not tried yet; one that refused a request a short time ago only if there is no
        other."""
        left = [server for server in self.servers.values() if server.name not in tried and server.is_available]
        usable = [server for server in left if not server.is_busy] or left
        # With affinity by key, requests of one key stay together whatever the load is.
        is_by_load = self.config.affinity is AffinityMode.PREFIX
        replicas = [Replica(server.name, server.load if is_by_load else 0) for server in usable]
        names = rank(keys, replicas, os.urandom(8))
        if not names:
            return None
        is_by_affinity = names[0] in [first_choice(key, names) for key in keys]
        self.metrics.picks.labels("affinity" if is_by_affinity else "load").inc()
        return self.servers[names[0]]


class Routing:
    """One request, from the choice of a server to the last byte of the reply."""

    def __init__(
        self,
        app: RouteApp,
        scope: Scope,
        receive: Receive,
        body: RequestBody,
        record: RouteRecord,
        *,
        is_same_origin: bool,
    ) -> None:
        self._app = app
        self._scope = scope
        self._receive = receive
        self._body = body
        self._record = record
        self._is_same_origin = is_same_origin
        self._connection: ServerConnection | None = None
        self._is_disconnected = False
        self._watching: asyncio.Task[None] | None = None

    async def run(self, send: Send) -> None:
        if self._body.is_repeatable:
            self._watching = asyncio.create_task(self._watch())
        try:
            await self._try_servers(send)
        except ServerFailed:
            raise (ClientDisconnect() if self._is_disconnected else ServerError("The server failed; retry.")) from None
        finally:
            if self._watching is not None:
                self._watching.cancel()

    async def _watch(self) -> None:
        """Ends the request at the server when the client disconnects."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._is_disconnected = True
        if self._connection is not None:
            self._connection.abort()

    async def _try_servers(self, send: Send) -> None:
        keys, tried = self._app.keys(self._scope, self._body), set[str]()
        refusal: Refusal | None = None
        while (server := self._app.pick(keys, tried)) is not None:
            if tried:
                self._record.retries += 1
                self._app.metrics.retries.labels("refused" if refusal else "failed").inc()
            tried.add(server.name)
            has_others = len(tried) < len(self._app.servers) and len(tried) <= self._app.config.max_retries
            refusal = await self._try_server(server, send, may_retry=self._body.is_repeatable and has_others)
            if self._record.status is not None:
                return
        if refusal is None:
            raise self._no_server()
        await self._start_reply(refusal.head, refusal.server, send)
        await send({"type": "http.response.body", "body": refusal.content})

    def _no_server(self) -> Unavailable:
        is_full = any(server.health is ServerHealth.READY for server in self._app.servers.values())
        message = "No server can take this request now; retry shortly." if is_full else "No server is ready."
        return Unavailable(message, code="server_overloaded" if is_full else "no_server")

    async def _try_server(self, server: RoutedServer, send: Send, *, may_retry: bool) -> Refusal | None:
        """Sends the reply, or returns a refusal. Returns None without a reply if another server is to be tried. Raises
        ServerFailed if none is."""
        server.counts.requests += 1
        server.num_open += 1
        server.breaker.begin()
        exchange, outcome = None, "cancelled"
        try:
            exchange = Exchange(server, await server.connect())
            self._connection = exchange.connection
            if self._is_disconnected:
                raise ClientDisconnect
            head = exchange.head = await self._send_request(exchange)
            if head.status == 503 and may_retry:
                refusal = Refusal(head, await read_refusal(exchange.connection), server)
                server.mark_busy(retry_after(head))
                outcome = "refused"
                return refusal
            self._record.server = server.name
            await self._pass_reply(exchange, send)
            outcome = "answered"
        except ServerFailed as error:
            if self._is_disconnected:
                raise
            outcome = "failed"
            log.warning("server failed: %s", error, extra={"server": server.name, "request_id": self._record.id})
            if self._record.status is not None or not (may_retry and self._may_repeat(exchange, error)):
                raise
        finally:
            self._settle(server, exchange, outcome)
        return None

    def _settle(self, server: RoutedServer, exchange: Exchange | None, outcome: str) -> None:
        self._connection = None
        server.num_open -= 1
        self._app.metrics.requests.labels(server.name, outcome).inc()
        if outcome == "failed":
            server.counts.failures += 1
            server.breaker.fail()
        elif outcome == "cancelled":
            server.breaker.cancel()
        else:
            server.breaker.succeed()
        if exchange is not None:
            server.give_back(exchange.connection)

    def _may_repeat(self, exchange: Exchange | None, error: ServerFailed) -> bool:
        """Whether the request, which failed before its reply, may go to another server. A request that never left this
        process always may; one that a server may have received only if it is carried out and charged once."""
        method, path = self._scope["method"], self._scope["path"]
        if exchange is None or not exchange.connection.has_sent or method in REPEATABLE_METHODS:
            return True
        # The server may still be working on it, and its idempotency key is in use until the work ends.
        if isinstance(error, ServerTimedOut):
            return False
        has_key = Headers(scope=self._scope).get("idempotency-key") is not None
        return has_key or (method == "POST" and path in REPEATABLE_POSTS)

    async def _send_request(self, exchange: Exchange) -> ReplyHead:
        connection, body = exchange.connection, self._body
        head = request_head(self._scope, exchange.server.address, body.num_bytes, is_same_origin=self._is_same_origin)
        connection.begin(has_body=self._scope["method"] != "HEAD")
        started = time.perf_counter()
        if body.is_repeatable:
            await connection.write(head + body.leading)
            reply = await connection.read_head()
        else:
            reply = await self._send_long_body(connection, head)
            self._watching = asyncio.create_task(self._watch())
        self._app.metrics.head_seconds.observe(time.perf_counter() - started)
        return reply

    async def _send_long_body(self, connection: ServerConnection, head: bytes) -> ReplyHead:
        """The reply may begin before the body is sent, for example because it is too large."""

        async def write() -> None:
            await connection.write(head)
            async for piece in self._body.rest():
                await connection.write(piece)

        writing, reading = asyncio.create_task(write()), asyncio.create_task(connection.read_head())
        try:
            await asyncio.wait({writing, reading}, return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                writing.result()
            if not writing.done():
                connection.forbid_reuse()
            return await reading
        finally:
            for task in (writing, reading):
                task.cancel()
            await asyncio.gather(writing, reading, return_exceptions=True)

    async def _start_reply(self, head: ReplyHead, server: RoutedServer, send: Send) -> None:
        self._record.status = head.status
        headers = reply_headers(head, server.number)
        if 200 <= head.status < 300 and requires_key(self._scope["path"]) and TRUST in self._scope:
            self._scope[TRUST]()
        await send({"type": "http.response.start", "status": head.status, "headers": headers})

    async def _pass_reply(self, exchange: Exchange, send: Send) -> None:
        assert exchange.head is not None
        if exchange.head.status == 503:
            exchange.server.mark_busy(retry_after(exchange.head))
        await self._start_reply(exchange.head, exchange.server, send)
        read = exchange.connection.read
        try:
            while piece := await read():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except ServerFailed:
            if self._is_disconnected or not is_event_stream(exchange.head):
                raise
            await send({"type": "http.response.body", "body": self._failure_event()})
            raise
        await send({"type": "http.response.body", "body": b""})

    def _failure_event(self) -> bytes:
        """Ends an event that may be incomplete, then sends the error in the form of the request's API."""
        path = self._scope["path"]
        payload = envelope_for(path, ServerError("The server failed while it answered; retry."))
        is_named = path.startswith("/v1/messages")
        return b"\n\n" + (named_event("error", payload) if is_named else data_event(payload))


def is_event_stream(head: ReplyHead) -> bool:
    return (head.get(b"content-type") or b"").startswith(b"text/event-stream")


def requires_key(path: str) -> bool:
    return path.startswith(KEYED_PREFIXES) or path in KEYED_PATHS


def retry_after(head: ReplyHead) -> float:
    stated = head.get(b"retry-after") or b"1"
    return float(stated) if stated.isdigit() and len(stated) < 6 else 1.0


async def read_refusal(connection: ServerConnection) -> bytes:
    body = bytearray()
    while piece := await connection.read():
        body += piece
        if len(body) > MAX_REFUSAL_BYTES:
            raise ServerFailed("the refusal is too long")
    return bytes(body)
