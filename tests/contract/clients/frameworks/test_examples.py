"""The applications in `examples/frameworks` against the live server: form, loop, cache and released slots."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest
from conftest import Server
from openai import AsyncOpenAI

ROOT = Path(__file__).parents[4]
sys.path.insert(0, str(ROOT))

from examples.frameworks import agents_loop, counters, llama_index_rag, orchestra, voice  # noqa: E402

NUM_TURNS = 200


@pytest.mark.timeout(300)
async def test_fifty_steps_of_an_agent_come_from_a_cached_prompt(server: Server) -> None:
    async with AsyncOpenAI(base_url=server.v1, api_key="none", timeout=120) as client:
        loop = await agents_loop.run(client, "nano", num_steps=50)
    assert len(loop.shop.called) == 50
    assert loop.cached_share() >= 0.8


async def test_answers_cite_a_passage_that_was_shown(server: Server) -> None:
    search = llama_index_rag.search_of(server.url)
    cited = await asyncio.to_thread(search.answer, "How long does the battery last?")
    assert len(cited.candidates) == 3
    assert cited.passage in cited.candidates


async def test_eight_helpers_share_a_prefix_and_answer_as_alone(server: Server) -> None:
    llm = orchestra.model_of(server.url)
    alone = [await orchestra.run(llm, (task,)) for task in orchestra.TASKS]
    together = await orchestra.run(llm)
    assert together["page"] == "\n".join(state["page"] for state in alone)
    assert len(together["answers"]) == 8
    assert all(one["cached_tokens"] > 0.8 * one["prompt_tokens"] for one in together["answers"])


@pytest.mark.timeout(600)
async def test_two_hundred_turns_with_interruptions_release_everything(server: Server) -> None:
    names = ("num_requests_running", "num_requests_waiting", "aborts_total", "kv_pages_free")
    before = counters.read(server.admin_url, *names)
    call = await voice.talk(voice.service(server.url, "nano", "none", "verify", max_tokens=24), NUM_TURNS)
    assert (len(call.texts), call.num_interrupted) == (NUM_TURNS, NUM_TURNS // 2)
    deadline = time.monotonic() + 10
    while (after := counters.read(server.admin_url, *names))["num_requests_running"]:
        assert time.monotonic() < deadline, "an interrupted turn kept its slot"
        await asyncio.sleep(0.02)
    assert after["num_requests_waiting"] == 0
    # An answer may end while the user begins to interrupt it.
    assert 0.9 * NUM_TURNS // 2 <= after["aborts_total"] - before["aborts_total"] <= NUM_TURNS // 2
    assert after["kv_pages_free"] == before["kv_pages_free"], "pages were lost"
    assert len(set(call.texts[::4])) == 1, "an answer lost or gained text by an interruption before it"


async def test_a_comparison_prints_both_decoders(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    search = {name: llama_index_rag.search_of(server.url, decoder=name) for name in ("ar", "verify")}

    async def run(decoder: str) -> str:
        return (await asyncio.to_thread(search[decoder].answer, "How heavy is the device?")).passage

    assert await counters.compare(server.admin_url, run)
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()] == ["ar", "verify", "time"]
