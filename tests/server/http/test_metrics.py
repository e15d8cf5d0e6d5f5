"""Prometheus metrics."""

from __future__ import annotations

import httpx

from quicksilver.errors import EngineDied
from quicksilver.server.admin_app import build_admin_app
from tests.server.conftest import Served, chat


async def scrape(served: Served) -> str:
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        return (await client.get("/metrics")).text


async def test_metrics_count_requests_tokens_and_engine_figures(served: Served) -> None:
    await served.post("/v1/chat/completions", chat())
    await served.post("/v1/chat/completions", chat(n=0))
    text = await scrape(served)
    route = 'route="/v1/chat/completions"'
    assert f'quicksilver_http_requests_total{{{route},status="200"}} 1.0' in text
    assert f'quicksilver_http_requests_total{{{route},status="400"}} 1.0' in text
    assert 'quicksilver_request_success_total{finished_reason="stop",model="nano"} 1.0' in text
    assert 'quicksilver_time_to_first_token_seconds_count{model="nano"} 1.0' in text
    assert 'quicksilver_num_requests_running{model="nano"} 0.0' in text
    assert 'quicksilver_kv_cache_usage{model="nano"} 0.0' in text


async def test_metrics_have_the_wait_and_the_time_per_token_of_each_answer(served: Served) -> None:
    await served.post("/v1/chat/completions", chat(n=2))
    await served.post("/v1/chat/completions", chat(max_tokens=1))
    text = await scrape(served)
    assert 'quicksilver_request_queue_time_seconds_count{model="nano"} 3.0' in text
    # An answer of one token has no time between tokens.
    assert 'quicksilver_time_per_output_token_seconds_count{model="nano"} 2.0' in text


async def test_metrics_do_not_grow_with_paths_that_callers_invent(served: Served) -> None:
    for i in range(20):
        await served.get(f"/invented/{i}")
        await served.get(f"/v1/models/invented-{i}")
    text = await scrape(served)
    assert "invented" not in text
    assert 'route="unmatched",status="404"} 20.0' in text


async def test_metrics_answer_while_the_engine_is_dead(served: Served) -> None:
    async def dead() -> None:
        raise EngineDied("gone")

    served.engine.stats = dead
    assert "quicksilver_http_requests_open" in await scrape(served)
