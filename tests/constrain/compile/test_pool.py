"""The compile pool: outcomes, limits on time and memory, replacement of processes, bounds on waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from quicksilver.constrain.compile.pool import CompilePool, PoolConfig
from quicksilver.constrain.compile.worker import compile_source
from quicksilver.constrain.source import (
    FormatKind,
    GrammarSource,
    ResponseFormat,
    ToolCallFormat,
    ToolSignature,
    ToolTags,
)
from quicksilver.errors import CompilerUnavailable, InvalidGrammar

SIMPLE = ResponseFormat(FormatKind.JSON_SCHEMA, {"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.fixture
async def pool() -> AsyncIterator[CompilePool]:
    pool = CompilePool(PoolConfig(num_processes=1, deadline_s=100))
    await pool.start()
    yield pool
    await pool.stop()


async def all_ready(pool: CompilePool) -> None:
    async with asyncio.timeout(60):
        while pool._idle.num_free < pool.config.num_processes:
            await asyncio.sleep(0.01)


async def test_a_source_compiles_as_in_this_process(pool: CompilePool) -> None:
    tools = ToolCallFormat((ToolSignature("f", {"type": "object"}),), ToolTags(5, 6))
    for source in (SIMPLE, tools, ResponseFormat(FormatKind.CHOICE, ["a", "b"])):
        assert await pool.compile(source, "t") == compile_source(source)
    assert pool.num_replaced == 0


async def test_a_refusal_names_the_keyword(pool: CompilePool) -> None:
    bad = ResponseFormat(FormatKind.JSON_SCHEMA, {"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    with pytest.raises(InvalidGrammar, match="`uniqueItems`"):
        await pool.compile(bad)
    assert pool.num_replaced == 0


async def test_outcomes_are_cached_per_tenant(pool: CompilePool) -> None:
    spec = await pool.compile(SIMPLE, "one")
    await pool.stop()
    assert await pool.compile(SIMPLE, "one") == spec
    with pytest.raises(CompilerUnavailable):
        await pool.compile(SIMPLE, "two")


HOSTILE: list[GrammarSource] = [
    ResponseFormat(FormatKind.JSON_SCHEMA, schema)
    for schema in (
        {"anyOf": [{"type": "string", "pattern": f"^{i:05d}.*{i}$"} for i in range(3000)]},
        {"allOf": [{"anyOf": [{"properties": {f"k{i}": {"const": j}}} for j in range(4)]} for i in range(14)]},
        {"oneOf": [{"properties": {f"p{j}": {"enum": [i, j]} for j in range(15)}} for i in range(25)]},
        {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {"type": "array", "minItems": 10**7, "items": {"type": "object"}},
        {"type": "string", "minLength": 10**8},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1000)}, "minProperties": 500},
        {
            "enum": [f"value number {i}" for i in range(5000)],
            "not": {"enum": [f"value number {i}" for i in range(4999)]},
        },
        {"type": "string", "pattern": ".{500}.{500}a"},
        {"type": "string", "pattern": "(((a{1,100}){1,100}){1,100})"},
    )
] + [
    ResponseFormat(FormatKind.REGEX, expression)
    for expression in ("(a+)+b", "(a|a)*b", "a{1,1000000}", "(" * 500 + ")" * 500, "(x+x+)+y", "(?:a?){500}a{500}")
]
HOSTILE += [
    ResponseFormat(FormatKind.LARK, grammar)
    for grammar in (
        "start: " + "(" * 5000 + '"a"' + ")" * 5000,
        'start: a\na: a a | "x"',
        "start: start",
        "start: /(a|b)*/{1000,99999}",
    )
]


async def decide(pool: CompilePool, source: GrammarSource) -> bool:
    """Whether the source compiles; anything but a refusal is a failure of the test."""
    try:
        await pool.compile(source, f"tenant {id(source)}")
    except InvalidGrammar:
        return False
    return True


async def test_every_hostile_source_is_accepted_or_refused_and_the_pool_stays_usable(pool: CompilePool) -> None:
    outcomes = await asyncio.gather(*(decide(pool, source) for source in HOSTILE))
    await all_ready(pool)
    assert len(outcomes) == len(HOSTILE)
    assert any(outcomes)
    assert not all(outcomes)
    assert (await pool.compile(SIMPLE, "friend")).grammar


async def test_a_source_that_takes_too_long_is_refused_and_the_refusal_is_cached() -> None:
    # Long limits: on a busy machine the process must not count as stopped as well.
    pool = CompilePool(PoolConfig(num_processes=1, limit_s=0.01, stall_s=60.0, heartbeat_s=60.0))
    await pool.start()
    (before,) = pool.pids
    with pytest.raises(InvalidGrammar, match=r"more than 0\.01 s"):
        await pool.compile(HOSTILE[0])
    await all_ready(pool)
    (after,) = pool.pids
    assert after != before
    assert pool.num_replaced == 1
    await pool.stop()
    with pytest.raises(InvalidGrammar, match=r"more than 0\.01 s"):
        await pool.compile(HOSTILE[0])


async def test_a_source_that_takes_too_much_memory_is_refused() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, memory_bytes=1024 * 1024))
    await pool.start()
    with pytest.raises(InvalidGrammar, match="memory"):
        await pool.compile(ResponseFormat(FormatKind.JSON_SCHEMA, {"enum": [f"{i:040d}" for i in range(5000)]}))
    await pool.stop()


async def test_waiting_is_bounded_per_tenant_and_in_total() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, max_waiting=3, max_waiting_tenant=2))
    pool._is_open = True  # No process is started, so that everything waits.
    waiting = [asyncio.create_task(pool.compile(SIMPLE, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CompilerUnavailable):
        await pool.compile(SIMPLE, "a")
    waiting.append(asyncio.create_task(pool.compile(SIMPLE, "b")))
    await asyncio.sleep(0)
    with pytest.raises(CompilerUnavailable) as caught:
        await pool.compile(SIMPLE, "c")
    assert caught.value.retry_after_s > 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not pool._waiting


async def test_concurrent_requests_for_one_source_get_one_spec(pool: CompilePool) -> None:
    source = ResponseFormat(FormatKind.JSON_SCHEMA, {"const": "asked by many"})
    specs = await asyncio.gather(*(pool.compile(source, "crowd") for _ in range(40)))
    assert len(set(specs)) == 1


async def test_a_cancelled_request_replaces_its_process(pool: CompilePool) -> None:
    task = asyncio.create_task(pool.compile(HOSTILE[0], "t"))
    while not pool._waiting or pool._idle.num_free:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await all_ready(pool)
    assert (await pool.compile(SIMPLE, "t")).grammar


async def test_a_stopped_pool_is_unavailable() -> None:
    pool = CompilePool()
    with pytest.raises(CompilerUnavailable):
        await pool.compile(SIMPLE)
    await pool.stop()


def test_the_default_limits_are_the_published_ones() -> None:
    config = PoolConfig()
    assert (config.limit_s, config.memory_bytes, config.cache_bytes) == (2.0, 512 * 2**20, 128 * 2**20)
