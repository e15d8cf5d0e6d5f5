"""Files and updates that crash a parser or keep it busy: the server answers, and no code is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from quicksilver.server.encoding.pool import EncoderConfig, EncoderPool
from quicksilver.text.chat import ChatTemplate
from tests.server.conftest import Served, content_of, events
from tests.server.endpoints.edits.test_apply import APPLY, MERGED, ORIGINAL, UPDATE, apply
from tests.support.small_tokenizer import small_tokenizer

HOSTILE = {
    "quotes and lists": "> - " * 200,
    "many quotes and lists": "> - " * 3000,
    "quotes": "> " * 300,
    "lists": "- " * 1500,
    "numbered lists": "1. " * 300,
    "complex keys": "? " * 1500,
    "nested keys": "\n".join(" " * n + "a:" for n in range(480)),
    "nested quotes": "\n".join(">" * n for n in range(300)),
    "string templates": '"${' * 2000,
    "brackets": "[" * 5000,
    "template parameters": "template <class T>\n" * 1500 + "void f() {}",
    "repeated lines": "x = 1\n\n" * 3000,
}
HEADS = {
    "markdown": "# Title\n\nSome *text* with a [link](a.md).\n",
    "yaml": "name: test\non: push\njobs:\n  build:\n    steps: []\n",
    "kotlin": "package a\n\nimport b.c\n\nfun first(): Int {\n    val x = 1\n    return x\n}\n",
    "csharp": "using System;\n\nnamespace A\n{\n    public class B\n    {\n        public int C { get; }\n    }\n}\n",
    "cpp": "#include <vector>\n\nnamespace a {\nstd::vector<int> f() { return {}; }\n}  // namespace a\n",
}
OLD, NEW = "the old line stays here", "the new line stays here"


@asynccontextmanager
async def pool_of(served: Served, **limits: float) -> AsyncIterator[EncoderPool]:
    """The server with one encoder process."""
    tokenizer = small_tokenizer()
    pool = EncoderPool(tokenizer, ChatTemplate.own(tokenizer), EncoderConfig(num_processes=1, **limits))  # type: ignore[arg-type]
    await pool.start()
    served.app.state.services = replace(served.services, encoders=pool)
    try:
        yield pool
    finally:
        await pool.stop()


@pytest.mark.parametrize("language", HEADS)
async def test_a_hostile_file_or_update_is_answered_and_nothing_is_lost(served: Served, language: str) -> None:
    async with pool_of(served, limit_s=1.0, stall_s=60.0, deadline_s=100.0):
        for name, hostile in HOSTILE.items():
            original = f"{HEADS[language]}\n{hostile}\n\nanchor above the line\n{OLD}\nanchor below the line\n"
            shown = f"anchor above the line\n{NEW}\nanchor below the line"
            reply = await served.post(APPLY, apply(original, shown))
            assert reply.status_code == 200, (name, reply.text[:500])
            content = reply.json()["choices"][0]["message"]["content"]
            assert content.strip() in (original.strip(), original.replace(OLD, NEW).strip()), name
        assert (await served.get("/health")).status_code == 200


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_update_changes_no_other_line(served: Served, name: str) -> None:
    async with pool_of(served, limit_s=1.0, stall_s=60.0, deadline_s=100.0):
        for head in HEADS.values():
            reply = await served.post(APPLY, apply(head, HOSTILE[name]))
            content = reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else head
            assert set(head.split("\n")) <= set(content.split("\n"))
            assert reply.status_code in (200, 400), reply.text[:500]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_merge_that_takes_too_long_leaves_the_file_unchanged(served: Served, stream: bool) -> None:
    original = "\n".join(f"def f{n}(a):\n    return a + {n}\n" for n in range(3000))
    async with pool_of(served, limit_s=0.02, stall_s=60.0, deadline_s=100.0) as pool:
        reply = await served.post(APPLY, apply(original, UPDATE, stream=stream))
        chunks = events(reply) if stream else []
        content = content_of(chunks) if stream else reply.json()["choices"][0]["message"]["content"]
        warning = chunks[-1]["warning"] if stream else reply.json()["warning"]
        assert content.strip() == original.strip()
        assert "not applied" in warning
        assert pool.num_replaced > 0
    assert served.engine.seen == []


async def test_a_crashed_merge_leaves_the_file_unchanged_and_the_next_one_works(served: Served) -> None:
    async with pool_of(served, stall_s=60.0, deadline_s=100.0) as pool:
        os.kill(pool.pids[0], signal.SIGSEGV)
        reply = (await served.post(APPLY, apply(ORIGINAL, UPDATE))).json()
        assert reply["choices"][0]["message"]["content"].strip() == ORIGINAL.strip()
        assert "not applied" in reply["warning"]
        reply = (await served.post(APPLY, apply(ORIGINAL, UPDATE))).json()
        assert reply["choices"][0]["message"]["content"] == MERGED
        assert reply["warning"] is None


async def test_the_server_answers_while_a_merge_is_in_work(served: Served) -> None:
    async with pool_of(served, stall_s=60.0, deadline_s=100.0) as pool:
        os.kill(pool.pids[0], signal.SIGSTOP)
        merging = asyncio.create_task(served.post(APPLY, apply(ORIGINAL, UPDATE)))
        assert (await served.get("/health")).status_code == 200
        assert not merging.done()
        os.kill(pool.pids[0], signal.SIGCONT)
        assert (await merging).json()["choices"][0]["message"]["content"] == MERGED
