"""A few dozen generations of the big benchmark: server, compile pool, engine and final check, over random weights.

Random weights ask for whatever a grammar allows, which is harder on it than a model that knows JSON.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.generation_cases import CLOSED, DECODERS, make_case
from benchmarks.json_generations import RANDOM, open_engine, run_cases, served, summarise
from tests.support.weights import nano

NUM_CASES = 48


@pytest.mark.timeout(300)
async def test_every_finished_generation_is_valid(tmp_path: Path) -> None:
    nano()
    cases = [make_case(i, list(CLOSED.values())) for i in range(NUM_CASES)]
    engine, tokenizer = open_engine(RANDOM, "float32", threads=1)
    async with served(engine, tokenizer, tmp_path) as http:
        rows = [row async for row in run_cases(http, cases, batch=12)]
    await engine.close()
    found = summarise(rows)
    assert found["generations"] == NUM_CASES
    assert found["errors"] == found["refused"] == 0, found["faults"]
    assert found["finished_valid"] == found["finished"] > 0, found["faults"]
    assert found["at_the_limit_valid"] >= 0.9 * found["at_the_limit"]
    assert set(found["by"]["decoder"]) == set(DECODERS)
    assert set(found["by"]["stream"]) == {"True", "False"}


async def test_the_cache_of_the_benchmark_holds_a_context_of_nano() -> None:
    nano()
    engine, _ = open_engine("nano", "int8", threads=1)
    assert engine.info.num_pages * engine.info.page_size >= engine.info.context_len
    await engine.close()
