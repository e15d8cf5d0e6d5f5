"""Engine replicas on real raylets: equal answers, lost nodes, affinity, adapters, scaling."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quicksilver.core import Delta, EngineClient, Request, ScoreRequest, Scores, Usage
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine, Scored
from quicksilver.worker.async_engine import AsyncEngine
from tests.cluster.ray.live.conftest import TestCluster
from tests.support.row_adapters import random_adapter, saved
from tests.support.small_tokenizer import VOCAB_SIZE
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine, tiny_model

DECODERS = ("verify", "ar", "confidence", "edit")
# Nodes that are killed under open streams, and the file for the figures of a long run.
NUM_KILLS = int(os.environ.get("QUICKSILVER_NODE_KILLS", "1"))
RESULT = os.environ.get("QUICKSILVER_NODE_KILLS_RESULT", "")
pytestmark = [pytest.mark.timeout(600 + 90 * NUM_KILLS), pytest.mark.asyncio(loop_scope="session")]
LABELS = ScoreRequest("labels", tuple(range(5, 35)), tuple((i, i + 1, i + 2) for i in range(5, 65)))
WaitUntil = Callable[..., Any]


def request(number: int, num_tokens: int = 40) -> Request:
    """Every decoder, greedy and sampled."""
    sampling = {"temperature": 0.8, "seed": number} if number % 3 == 0 else {}
    params = decode_params(DECODERS[number % 4], canvas_len=8, max_new_tokens=num_tokens, **sampling)
    return Request(f"request {number}", tuple(5 + (number + i) % 60 for i in range(30 + number)), params)


def local_engine() -> Engine:
    return tiny_engine(EngineConfig(num_pages=2048, max_rows=96), tiny_model(vocab_size=VOCAB_SIZE))


def undisturbed_scores() -> Scores:
    engine = local_engine()
    engine.add_score(LABELS)
    while True:
        for event in engine.step():
            if isinstance(event, Scored):
                return event.scores


def is_close(one: Scores, other: Scores) -> bool:
    """The products of torch round differently with the number of rows of a forward."""
    pairs = zip(one.logprobs, other.logprobs, strict=True)
    return all(found == pytest.approx(expected, abs=1e-4) for found, expected in pairs)


def undisturbed(requests: list[Request]) -> list[list[int]]:
    """The answers of an engine in this process."""
    engine = local_engine()
    for each in requests:
        engine.add(each)
    found = answers(finish_all(engine))
    return [found[each.id] for each in requests]


async def ask(
    engine: EngineClient, each: Request, prefix: str = "", began: asyncio.Event | None = None
) -> tuple[list[int], Usage]:
    """`began` is set at the first token."""
    tokens: list[int] = []
    usage = Usage()
    async for event in engine.stream(replace(each, id=prefix + each.id)):
        if isinstance(event, Delta):
            tokens += event.token_ids
            usage = event.usage or usage
            if began is not None:
                began.set()
    return tokens, usage


async def test_replicas_follow_the_load(cluster: TestCluster, wait_until: WaitUntil) -> None:
    """The first test: later ones need both replicas."""
    engine = await cluster.engine()
    assert cluster.replicas() == {"RUNNING": 1}

    async def keep_asking(number: int) -> None:
        for turn in range(1000):
            await ask(engine, request(number, 200), f"load {turn} ")

    streams = [asyncio.create_task(keep_asking(i)) for i in range(1, 33, 4)]
    await wait_until(lambda: cluster.replicas().get("RUNNING", 0) == 2, 120.0)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    assert all(stream.cancelled() for stream in streams), "a request failed while replicas were added"
    await wait_until(lambda: cluster.replicas().get("RUNNING", 0) == 1, 120.0)
    await asyncio.to_thread(cluster.deploy, min_replicas=2, max_replicas=2)


async def test_streams_equal_those_of_one_engine(cluster: TestCluster) -> None:
    engine = await cluster.engine()
    requests = [request(i) for i in range(24)]
    found = await asyncio.gather(*(ask(engine, each) for each in requests))
    assert [tokens for tokens, _ in found] == undisturbed(requests)
    assert all(usage.migrated == 0 for _, usage in found)
    assert all(usage.completion_tokens == len(tokens) for tokens, usage in found)
    assert is_close(await engine.score(LABELS), undisturbed_scores())


async def test_a_cancelled_stream_frees_its_replica(cluster: TestCluster, wait_until: WaitUntil) -> None:
    engine = await cluster.engine()
    stream = engine.stream(replace(request(1, 400), id="cancelled"))
    await anext(stream)
    await wait_until(lambda: engine.health().stats.running == 1)
    await stream.aclose()
    await wait_until(lambda: engine.health().stats.running == 0)
    assert engine.health().stats.aborts > 0


async def cached_tokens(engine: EngineClient, requests: list[Request], num_open: int = 24) -> int:
    """The prompt tokens that were found in the cache, with `num_open` requests at once."""
    waiting, found = iter(requests), 0

    async def keep_asking() -> None:
        nonlocal found
        for each in waiting:
            # Not `found += await …`, which reads `found` before it waits.
            _, usage = await ask(engine, each)
            found += usage.cached_tokens

    await asyncio.gather(*(keep_asking() for _ in range(num_open)))
    return found


async def test_equal_prefixes_share_a_replica_and_no_replica_is_overloaded(
    cluster: TestCluster, wait_until: WaitUntil
) -> None:
    prefixes = [tuple((7 * prefix + i) % 90 for i in range(128)) for prefix in range(8)]
    prompts = [(*prefix, turn, 1, 2) for turn in range(40) for prefix in prefixes]
    params = decode_params("ar", max_new_tokens=2)
    requests = [Request(f"prefix {i}", prompt, params) for i, prompt in enumerate(prompts)]
    random.Random(1).shuffle(requests)
    engine, alone = await cluster.engine(), AsyncEngine(local_engine())

    def num_requests() -> dict[str, int]:
        return {name: each.health().stats.requests for name, each in engine._replicas.items()}

    # The first heartbeats.
    await wait_until(lambda: all(each.health().stats.free_pages for each in engine._replicas.values()))
    before = num_requests()
    found = await cached_tokens(engine, requests)
    await wait_until(lambda: sum(num_requests().values()) - sum(before.values()) >= len(requests))
    loads = [count - before[replica] for replica, count in num_requests().items()]
    assert sum(loads) == len(requests)
    assert max(loads) <= 1.6 * len(requests) / 2, loads
    assert found >= 0.9 * await cached_tokens(alone, requests)
    await alone.close()


async def test_an_adapter_with_new_weights_finds_no_page_of_the_old_ones(cluster: TestCluster, tmp_path: Path) -> None:
    engine, texts = await cluster.engine(), list[list[int]]()
    asked = Request("adapter", tuple(range(5, 85)), decode_params("ar", max_new_tokens=12))
    for seed in (1, 2):
        # The same file, hence the same name and path.
        adapter = saved(tmp_path, random_adapter(seed, config=tiny_model(vocab_size=VOCAB_SIZE).config))
        each = replace(asked, adapter=adapter)
        tokens, usage = await ask(engine, each, f"{seed} ")
        assert usage.cached_tokens == 0
        assert [tokens] == undisturbed([each])
        again, usage = await ask(engine, each, f"{seed} again ")
        assert (again, usage.cached_tokens > 0) == (tokens, True)
        texts.append(tokens)
    assert texts[0] != texts[1]


async def test_streams_survive_the_loss_of_their_node(cluster: TestCluster, wait_until: WaitUntil) -> None:
    engine = await cluster.engine()
    requests = [request(i, 120) for i in range(12)]
    expected, labels = undisturbed(requests), undisturbed_scores()
    num_migrated, num_continued, seconds = 0, 0, list[float]()
    for kill in range(NUM_KILLS):
        await wait_until(lambda: cluster.replicas().get("RUNNING", 0) == 2, 120.0)
        began = [asyncio.Event() for _ in requests]
        streams = [
            asyncio.create_task(ask(engine, each, f"kill {kill} ", event))
            for each, event in zip(requests, began, strict=True)
        ]
        await asyncio.gather(*(event.wait() for event in began))
        scoring = asyncio.create_task(engine.score(replace(LABELS, id=f"labels {kill}")))
        started = time.monotonic()
        await asyncio.to_thread(cluster.kill_node)
        found = await asyncio.gather(*streams)
        scores = await scoring
        seconds.append(round(time.monotonic() - started, 2))
        # Ray starts nodes from the main thread only.
        cluster.add_node()
        assert [tokens for tokens, _ in found] == expected
        # No token twice: what was counted is what arrived.
        assert all(usage.completion_tokens == len(tokens) for tokens, usage in found)
        assert is_close(scores, labels)
        num_migrated += sum(usage.migrated for _, usage in found)
        num_continued += sum(usage.migrated > 0 for _, usage in found)
        write_result(kill + 1, (kill + 1) * len(requests), num_continued, num_migrated, seconds)
    assert num_migrated > 0


def write_result(kills: int, streams: int, continued: int, continuations: int, seconds: list[float]) -> None:
    """The figures so far, after all streams of the last kill were equal to the undisturbed ones."""
    if not RESULT:
        return
    figures = {
        "kills": kills,
        "streams": streams,
        "continued": continued,
        "continuations": continuations,
        "stream_faults": 0,
        "all_streams_ended_after_s": {"p50": sorted(seconds)[len(seconds) // 2], "max": max(seconds)},
        "cores": os.cpu_count(),
        "load_at_end": round(os.getloadavg()[0], 1),
    }
    Path(RESULT).write_text(json.dumps(figures, indent=2) + "\n")
