"""The router on real sockets, in front of real servers with scripted engines and in front of servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from quicksilver.cluster.proxy.config import Address, AffinityMode, RouteConfig
from quicksilver.cluster.proxy.headers import VIA
from quicksilver.core import Request
from quicksilver.server.breaker import BreakerConfig
from tests.server.conftest import HELLO, says
from tests.support.fake_engine import Step, spoken
from tests.support.routed import Answer, RawServer, Routed, reply, routed, routed_servers
from tests.support.small_tokenizer import small_tokenizer
from tests.support.sockets import connect, read_to_end

CHAT = "/v1/chat/completions"
LONG = "You are a careful assistant. " * 60


def chat(text: str = "hi", system: str = LONG, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return {"model": "nano", "messages": messages, **fields}


def config(**settings: Any) -> RouteConfig:
    return RouteConfig((Address("placeholder", 1),), **settings)


@asynccontextmanager
async def raw_servers(
    *answers: Answer, settings: RouteConfig | None = None
) -> AsyncIterator[tuple[Routed, list[RawServer]]]:
    servers = [RawServer(answer) for answer in answers]
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(server.listening()) for server in servers]
        yield await stack.enter_async_context(routed(ports, settings)), servers


async def ok(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(b"fine"))


async def refuse(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(reply(b"full", b"503 Service Unavailable", b"retry-after: 7\r\n"))


async def cut(head: bytes, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def test_replies_are_those_of_the_server(tmp_path: Path) -> None:
    async with routed_servers(tmp_path, [says(HELLO)]) as found, found.client() as client:
        whole = await client.post(CHAT, json=chat())
        assert whole.json()["choices"][0]["message"]["content"] == HELLO
        assert whole.headers["x-quicksilver-server"] == "1"
        assert len(whole.headers.get_list("date")) == 1
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post(CHAT, content=b"{")).json()["error"]["code"] == "invalid_json"
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.head("/health")).content == b""


def marked(request: Request) -> list[Step]:
    prompt = small_tokenizer().decode(request.prompt_ids)
    at = prompt.rindex("#")
    return spoken(request, small_tokenizer().encode(prompt[at : at + 4] * 10), piece_len=4)


async def test_many_streams_are_byte_exact(tmp_path: Path) -> None:
    settings = config(connect_s=60)
    async with routed_servers(tmp_path, [marked, marked], settings) as found, found.client() as client:

        async def ask(i: int) -> tuple[str, str]:
            answer = await client.post(CHAT, json=chat(f"#{i:03x}", "", stream=True, seed=1))
            assert answer.headers["content-type"].startswith("text/event-stream")
            return answer.text, answer.headers["x-quicksilver-server"]

        client.timeout = httpx.Timeout(60)
        replies = await asyncio.gather(*(ask(i) for i in range(64)))
        for i, (text, _) in enumerate(replies):
            deltas = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            assert "".join(d["choices"][0]["delta"].get("content", "") for d in deltas) == f"#{i:03x}" * 10
            assert text.endswith("data: [DONE]\n\n")
        assert {server for _, server in replies} == {"1", "2"}
        assert sum(engine.num_finished for engine in found.engines) == 64


async def test_pieces_are_passed_on_before_the_reply_is_complete(tmp_path: Path) -> None:
    go = asyncio.Event()

    def script(request: Request) -> list[Step]:
        first, *rest = spoken(request, small_tokenizer().encode(HELLO))
        return [first, go.wait, *rest]

    async with (
        routed_servers(tmp_path, [script]) as found,
        found.client() as client,
        client.stream("POST", CHAT, json=chat(stream=True)) as answer,
    ):
        lines = answer.aiter_lines()
        assert "content" in [await anext(lines) for _ in range(3)][2]
        go.set()
        assert [line async for line in lines][-2] == "data: [DONE]"


async def test_a_client_that_leaves_ends_the_request_at_the_server(tmp_path: Path) -> None:
    def script(request: Request) -> list[Step]:
        return [*spoken(request, small_tokenizer().encode("hello"))[:1], asyncio.Event().wait]

    async with routed_servers(tmp_path, [script]) as found, found.client() as client:
        async with client.stream("POST", CHAT, json=chat(stream=True)) as answer:
            await anext(answer.aiter_lines())
        await until(lambda: found.engines[0].num_aborted == 1)
        waiting = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: found.engines[0].num_open == 1)
        waiting.cancel()
        await until(lambda: found.engines[0].num_aborted == 2)
        await until(lambda: found.app.servers[server_name(found)].num_open == 0)
        assert found.engines[0].num_open == 0


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def server_name(found: Routed) -> str:
    return next(iter(found.app.servers))


async def test_equal_prefixes_go_to_one_server_and_others_elsewhere(tmp_path: Path) -> None:
    async with routed_servers(tmp_path, [says("a"), says("b")]) as found, found.client() as client:
        by_system: dict[str, set[str]] = {}
        for i in range(40):
            system = f"Assistant number {i % 10}. " * 60
            answer = await client.post(CHAT, json=chat(f"question {i}", system, temperature=i / 100))
            by_system.setdefault(system, set()).add(answer.headers["x-quicksilver-server"])
        assert all(len(servers) == 1 for servers in by_system.values())
        assert {server for servers in by_system.values() for server in servers} == {"1", "2"}


async def test_affinity_by_key_keeps_all_requests_of_a_key_together(tmp_path: Path) -> None:
    settings = config(affinity=AffinityMode.KEY)
    async with routed_servers(tmp_path, [says("a"), says("b")], settings) as found, found.client() as client:
        for key in ("one", "two", "three", "four", "five"):
            headers = {"authorization": f"Bearer {key}"}
            replies = [await client.post(CHAT, json=chat(str(i), str(i)), headers=headers) for i in range(3)]
            replies.append(await client.get("/v1/models", headers=headers))
            assert len({each.headers["x-quicksilver-server"] for each in replies}) == 1


KEY = {"idempotency-key": "k"}


async def test_a_dead_server_is_replaced_before_the_first_byte() -> None:
    async with raw_servers(cut, ok) as (found, servers), found.client() as client:
        for i in range(4):
            assert (await client.post(CHAT, json={"n": i}, headers=KEY)).text == "fine"
        assert len(servers[1].heads) == 4
        for i in range(60):
            await client.post(CHAT, json={"n": i}, headers=KEY)
        # The breaker keeps further requests away.
        assert len(servers[0].heads) <= 6
        status = (await client.get(found.admin_url + "/status")).json()
        assert status["servers"][0]["breaker"] == "open"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/files"])
async def test_requests_that_may_have_been_charged_are_not_sent_twice(path: str) -> None:
    async with raw_servers(cut, cut) as (found, servers), found.client() as client:
        answer = await client.post(path, content=b"{}")
        assert answer.status_code == 502
        assert sum(len(server.heads) for server in servers) == 1
        await client.post(path, content=b"{}", headers=KEY)
        assert sum(len(server.heads) for server in servers) == 3


async def test_requests_without_an_effect_are_sent_again() -> None:
    async with raw_servers(cut, cut) as (found, servers), found.client() as client:
        await client.get("/v1/models")
        await client.post("/tokenize", content=b"{}")
        assert sum(len(server.heads) for server in servers) == 4


async def test_a_request_that_took_too_long_is_not_sent_twice() -> None:
    """The server still works on it."""

    async def silent(head: bytes, writer: asyncio.StreamWriter) -> None:
        pass

    settings = config(head_s=0.1, health_interval_s=0.1)
    async with raw_servers(silent, silent, settings=settings) as (found, servers), found.client() as client:
        answer = await client.post(CHAT, json={}, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "server_failed")
        assert sum(len(server.heads) for server in servers) == 1


async def test_a_refusal_is_tried_elsewhere_and_passed_on_if_all_refuse() -> None:
    async with raw_servers(refuse, ok) as (found, servers), found.client() as client:
        assert [(await client.post(CHAT, json={"n": i})).text for i in range(8)] == ["fine"] * 8
        # A server that refused gets nothing while another one answers.
        assert len(servers[0].heads) <= 1
    async with raw_servers(refuse, refuse) as (found, servers), found.client() as client:
        answer = await client.post(CHAT, json={})
        assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (503, "full", "7")
        assert [len(server.heads) for server in servers] == [1, 1]


async def test_other_error_replies_are_answers() -> None:
    async def fail(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"broken", b"500 Internal Server Error"))

    async with raw_servers(fail, fail) as (found, servers), found.client() as client:
        for _ in range(10):
            assert (await client.post(CHAT, json={})).text == "broken"
        assert sum(len(server.heads) for server in servers) == 10


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    async def half(head: bytes, writer: asyncio.StreamWriter) -> None:
        event = b'data: {"a": 1}\n\nda'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
        writer.close()

    async with raw_servers(half, half) as (found, servers), found.client() as client:
        text = (await client.post(CHAT, json={"stream": True})).text
        assert json.loads(text.split("data: ")[-1])["error"]["code"] == "server_failed"
        assert "[DONE]" not in text
        named = (await client.post("/v1/messages", json={"stream": True})).text
        assert 'event: error\ndata: {"type":"error"' in named
        assert sum(len(server.heads) for server in servers) == 2


async def test_a_whole_reply_that_breaks_is_cut_off() -> None:
    async def half(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.close()

    async with raw_servers(half) as (found, _), found.client() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(CHAT, json={})


async def test_no_server_is_a_503_at_once() -> None:
    async with routed([1]) as found, found.client() as client:
        answer = await client.post(CHAT, json={})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_server")
        assert answer.headers["retry-after"] == "1"
        assert (await client.get("/ready")).json() == {"status": "no_server"}
        assert (await client.get("/health")).status_code == 200


async def test_open_requests_are_bounded_per_server_and_in_total() -> None:
    go = asyncio.Event()

    async def slow(head: bytes, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(reply(b"fine"))

    async with raw_servers(slow, slow, settings=config(max_open=2)) as (found, _), found.client() as client:
        first = [asyncio.create_task(client.post(CHAT, json={})) for _ in range(4)]
        await until(lambda: sum(server.num_open for server in found.app.servers.values()) == 4)
        refused = await client.post(CHAT, json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_overloaded")
        go.set()
        assert [(await each).text for each in first] == ["fine"] * 4


async def test_long_bodies_are_passed_on_and_not_kept() -> None:
    async with raw_servers(ok, settings=config(buffer_bytes=1000)) as (found, servers), found.client() as client:
        body = bytes(range(256)) * 4000
        assert (await client.post("/v1/files", content=body)).text == "fine"
        assert servers[0].bodies == [body]


async def test_long_bodies_without_a_length_are_sent_in_chunks() -> None:
    received = bytearray()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/ready" in head:
            writer.write(reply(b'{"status": "ready"}'))
        else:
            assert b"transfer-encoding: chunked" in head
            while size := int(await reader.readuntil(b"\r\n"), 16):
                received.extend((await reader.readexactly(size + 2))[:-2])
            writer.write(reply(b"fine"))
        writer.close()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 1000

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    settings = config(buffer_bytes=1000)
    async with routed([server.sockets[0].getsockname()[1]], settings) as found, found.client() as client:
        assert (await client.post("/v1/files", content=pieces())).text == "fine"
    server.close()
    assert received == b"x" * 10_000


async def test_headers_of_one_connection_are_not_passed_on() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(b"fine", headers=b"x-kept: 1\r\nconnection: x-named\r\nx-named: 2\r\nupgrade: h2c\r\n"))

    async with raw_servers(answer) as (found, servers), found.client() as client:
        headers = {"connection": "keep-alive, x-private", "x-private": "1", "te": "trailers", "x-own": "2"}
        answer_headers = (await client.post(CHAT, json={}, headers=headers)).headers
        assert answer_headers["x-kept"] == "1"
        assert "x-named" not in answer_headers
        assert "upgrade" not in answer_headers
        sent = servers[0].heads[0].lower()
        assert b"x-own: 2" in sent
        assert not any(name in sent for name in (b"x-private", b"\r\nte:", b"keep-alive"))
        assert sent.count(b"\r\nhost: 127.0.0.1:") == 1
        assert sent.count(b"content-length") == 1


async def test_no_address_comes_from_a_request() -> None:
    async with raw_servers(ok) as (found, servers):
        reader, writer = await connect(int(found.url.rpartition(":")[2]))
        port = servers[0]
        writer.write(
            b"GET http://example.com:99/v1/models?a=b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        )
        assert (await read_to_end(reader)).endswith(b"fine")
        assert port.heads[0].startswith(b"GET /v1/models?a=b HTTP/1.1\r\n")
        writer.close()
        async with found.client() as client:
            assert (await client.get("/v1/models", headers={"host": "example.com"})).status_code == 421
            assert (await client.get("/v1/models", headers={"origin": "http://evil.example"})).status_code == 403
            own = found.url.replace("http://", "")
            assert (await client.get("/v1/models", headers={"origin": found.url, "host": own})).text == "fine"
        assert b"origin" not in servers[0].heads[-1].lower()


async def test_a_router_that_is_its_own_server_is_refused() -> None:
    async with raw_servers(ok) as (found, servers), found.client() as client:
        answer = await client.get("/v1/models", headers={"via": ", ".join([VIA.decode()] * 4)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (508, "routed_in_circle")
        assert servers[0].heads == []


async def test_draining_refuses_new_requests_and_finishes_open_ones() -> None:
    go = asyncio.Event()

    async def slow(head: bytes, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(reply(b"fine"))

    async with raw_servers(slow) as (found, _), found.client() as client:
        first = asyncio.create_task(client.post(CHAT, json={}))
        await until(lambda: found.app.open_requests.num_open == 1)
        drained = asyncio.create_task(found.app.open_requests.drain(10))
        await asyncio.sleep(0)
        refused = await client.post(CHAT, json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert (await client.get("/ready")).json() == {"status": "draining"}
        go.set()
        assert (await first).text == "fine"
        assert await drained


async def test_metrics_and_status_show_every_server() -> None:
    settings = config(breaker=BreakerConfig(max_failures=1))
    async with raw_servers(ok, cut, settings=settings) as (found, _), found.client() as client:
        for i in range(30):
            await client.post(CHAT, json={"n": i}, headers=KEY)
        text = (await client.get(found.admin_url + "/metrics")).text
        names = list(found.app.servers)
        assert f'quicksilver_route_requests_total{{outcome="answered",server="{names[0]}"}} 30.0' in text
        assert f'quicksilver_route_breaker_open{{server="{names[1]}"}} 1.0' in text
        assert f'quicksilver_route_server_ready{{server="{names[0]}"}} 1.0' in text
        assert 'quicksilver_route_retries_total{reason="failed"} 1.0' in text
        page = (await client.get(found.admin_url + "/")).text
        assert all(name in page for name in names)
        foreign = await client.get(found.admin_url + "/status", headers={"host": "evil.example"})
        assert foreign.status_code == 421
