"""Kill the engine worker under open streams, again and again: what readers see, and how soon it answers again.

    python benchmarks/worker_kills.py [--kills 20] [--streams 8] [--save]

Tiny random weights in a real worker process behind the whole server. Every stream that was open must end with an
`error` chunk and without [DONE], the API process must go on, and every page must be free at the end. --save writes
`results/worker_kills-DATE.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.contract.worker_server import WorkerServer, worker_server

BODY = {"model": "nano", "messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 400}
ENDED_WELL, ENDED_WITH_ERROR = "done", "error"


async def read_stream(client: httpx.AsyncClient, seed: int, has_begun: asyncio.Event) -> str:
    """Read a stream and return how it ended."""
    async with client.stream("POST", "/v1/chat/completions", json={**BODY, "seed": seed}) as stream:
        last = ""
        async for line in stream.aiter_lines():
            has_begun.set()
            last = line or last
    if last == "data: [DONE]":
        return ENDED_WELL
    return ENDED_WITH_ERROR if "engine_died" in last else f"broken: {last[:80]}"


async def kill_once(server: WorkerServer, client: httpx.AsyncClient, num_streams: int, seed: int) -> dict[str, Any]:
    begun = [asyncio.Event() for _ in range(num_streams)]
    readers = [asyncio.create_task(read_stream(client, seed + i, event)) for i, event in enumerate(begun)]
    await asyncio.gather(*(event.wait() for event in begun))
    assert server.engine.worker_pid is not None
    os.kill(server.engine.worker_pid, signal.SIGKILL)
    started = time.monotonic()
    ends = await asyncio.gather(*readers)
    while (await client.get("/ready")).status_code != 200:
        await asyncio.sleep(0.02)
    return {"ends": ends, "seconds": time.monotonic() - started}


async def run(num_kills: int, num_streams: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as home:
        async with worker_server(Path(home)) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            rounds = [await kill_once(server, client, num_streams, 100 * i) for i in range(num_kills)]
            stats = await server.rest()
            is_whole = stats.free_pages == server.engine.info.num_pages
    ends = [end for one in rounds for end in one["ends"]]
    seconds = [one["seconds"] for one in rounds]
    return {
        "kills": num_kills,
        "streams_open_at_a_kill": num_streams,
        "ended_with_error_chunk": ends.count(ENDED_WITH_ERROR),
        "finished_before_the_kill": ends.count(ENDED_WELL),
        "ended_otherwise": sum(end not in (ENDED_WELL, ENDED_WITH_ERROR) for end in ends),
        "ready_again_s": {"p50": round(statistics.median(seconds), 2), "max": round(max(seconds), 2)},
        "all_pages_free": is_whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    figures = {"date": str(date.today()), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    figures["load_before"] = round(os.getloadavg()[0], 1)
    figures |= asyncio.run(run(options.kills, options.streams))
    print(json.dumps(figures, indent=2))
    if options.save:
        path = Path(__file__).parent / "results" / f"worker_kills-{figures['date']}.json"
        path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
