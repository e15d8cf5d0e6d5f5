"""The pool: outcomes as in one process, limits that kill, processes that come back, tenants apart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quicksilver.constrain.compile.pool import CompilePool, PoolConfig, bare_environment
from quicksilver.constrain.compile.worker import compile_source
from quicksilver.constrain.source import FormatKind, ResponseFormat, SpecSource, Tool, ToolPlan, ToolTags
from quicksilver.errors import InvalidGrammar, Unavailable

SIMPLE = ResponseFormat(FormatKind.JSON_SCHEMA, {"type": "object", "properties": {"a": {"type": "string"}}})


@pytest.fixture
async def pool() -> AsyncIterator[CompilePool]:
    pool = CompilePool(PoolConfig(num_processes=1))
    await pool.start()
    yield pool
    await pool.stop()


async def alive_again(pool: CompilePool) -> None:
    await asyncio.gather(*pool._respawning)


async def test_a_source_compiles_as_it_would_here(pool: CompilePool) -> None:
    tools = ToolPlan((Tool("f", {"type": "object"}),), ToolTags(5, 6))
    for source in (SIMPLE, tools, ResponseFormat(FormatKind.CHOICE, ["a", "b"])):
        assert await pool.check(source, "t") == compile_source(source)
    assert pool.num_killed == 0


async def test_a_refusal_comes_back_with_its_keyword(pool: CompilePool) -> None:
    bad = ResponseFormat(FormatKind.JSON_SCHEMA, {"type": "array", "items": {"type": "string"}, "uniqueItems": True})
    with pytest.raises(InvalidGrammar, match="`uniqueItems`"):
        await pool.check(bad)
    assert pool.num_killed == 0


async def test_an_outcome_is_asked_for_once_per_tenant(pool: CompilePool) -> None:
    spec = await pool.check(SIMPLE, "one")
    (process,) = pool._processes
    process.kill()
    await process.wait()
    assert await pool.check(SIMPLE, "one") == spec
    with pytest.raises(InvalidGrammar):
        await pool.check(SIMPLE, "two")
    assert pool.num_killed == 1


HOSTILE: list[SpecSource] = [
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


async def decide(pool: CompilePool, source: SpecSource) -> bool:
    """Whether the source compiles; anything but a refusal is a failure of the test."""
    try:
        await pool.check(source, f"tenant {id(source)}")
    except InvalidGrammar:
        return False
    return True


async def test_every_hostile_source_is_decided_and_the_pool_lives(pool: CompilePool) -> None:
    outcomes = await asyncio.gather(*(decide(pool, source) for source in HOSTILE))
    await alive_again(pool)
    assert len(outcomes) == len(HOSTILE)
    assert any(outcomes)
    assert not all(outcomes)
    assert len(pool._processes) == 1
    assert (await pool.check(SIMPLE, "friend")).grammar


async def test_a_source_that_takes_too_long_is_refused_and_its_process_replaced() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, limit_s=1e-6))
    await pool.start()
    (before,) = pool._processes
    with pytest.raises(InvalidGrammar, match="more than 1e-06 s"):
        await pool.check(SIMPLE)
    await alive_again(pool)
    (after,) = pool._processes
    assert before.returncode is not None
    assert after.pid != before.pid
    assert pool.num_killed == 1
    await pool.stop()
    assert after.returncode is not None


async def test_a_source_that_takes_too_much_memory_is_refused() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, memory_bytes=1024 * 1024))
    await pool.start()
    with pytest.raises(InvalidGrammar, match="memory"):
        await pool.check(ResponseFormat(FormatKind.JSON_SCHEMA, {"enum": [f"{i:040d}" for i in range(5000)]}))
    await pool.stop()


async def test_waiting_is_bounded_for_each_tenant_and_for_all() -> None:
    pool = CompilePool(PoolConfig(num_processes=1, max_waiting=3, max_waiting_tenant=2))
    pool._is_open = True  # No process is started, so that everything waits.
    waiting = [asyncio.create_task(pool.check(SIMPLE, "a")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await pool.check(SIMPLE, "a")
    waiting.append(asyncio.create_task(pool.check(SIMPLE, "b")))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as caught:
        await pool.check(SIMPLE, "c")
    assert caught.value.retry_after_s > 0
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert not pool._waiting


async def test_of_many_with_the_same_source_one_compiles_it(pool: CompilePool) -> None:
    source = ResponseFormat(FormatKind.JSON_SCHEMA, {"const": "asked by many"})
    specs = await asyncio.gather(*(pool.check(source, "crowd") for _ in range(40)))
    assert len(set(specs)) == 1


async def test_a_caller_that_leaves_costs_one_process_and_no_more(pool: CompilePool) -> None:
    task = asyncio.create_task(pool.check(HOSTILE[0], "t"))
    while not pool._waiting or pool._idle.num_free:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await alive_again(pool)
    assert (await pool.check(SIMPLE, "t")).grammar


async def test_a_pool_that_does_not_run_is_unavailable() -> None:
    pool = CompilePool()
    with pytest.raises(Unavailable):
        await pool.check(SIMPLE)
    await pool.stop()


def test_processes_inherit_no_secrets(monkeypatch: Any) -> None:
    monkeypatch.setenv("QUICKSILVER_ADMIN_KEY", "secret")
    assert "secret" not in bare_environment().values()
    assert bare_environment()["PATH"] == os.environ["PATH"]


def test_the_default_limits_are_the_published_ones() -> None:
    config = PoolConfig()
    assert (config.limit_s, config.memory_bytes, config.cache_bytes) == (2.0, 512 * 2**20, 128 * 2**20)
