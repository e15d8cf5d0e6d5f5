"""What `quicksilver route` adds to a server, as differences and ratios from one run.

    python -m benchmarks.route [--streams 1000] [--chunks 20] [--gap-ms 200] [--out benchmarks/results]

Two servers with a scripted engine, a router in front of them, and the reader are processes of their own. Printed: the
time to the first token with and without the router at concurrency 1, in alternation; CPU seconds per stream of the
router, relative to those of a server that is read directly; and how many of many streams at once came back byte-exact.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.http_streams import measure, post, start_server, wait_for
from quicksilver.cluster.proxy.config import Address, RouteConfig
from quicksilver.cluster.proxy.run import run_route
from quicksilver.evals.report import machine_facts
from quicksilver.server.config import ServerConfig

TICKS = os.sysconf("SC_CLK_TCK")


async def route(port: int, servers: list[int]) -> None:
    config = RouteConfig(tuple(Address("127.0.0.1", server) for server in servers))
    listener = ServerConfig(port=port, admin_port=0)
    await run_route(config, listener, lambda found, app: None)


def start_route(port: int, servers: list[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, __file__, "--route", str(port), *map(str, servers)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process since it was started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def first_token_ms(port: int) -> float:
    """From the request to the first text, on a new connection as a client makes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.perf_counter()
    writer.write(post({"model": "nano", "stream": True, "messages": [{"role": "user", "content": "#001"}]}))
    async for line in reader:
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
            break
    elapsed_ms = (time.perf_counter() - started) * 1000
    writer.close()
    return elapsed_ms


async def added_latency(direct: int, routed: int, num: int) -> dict[str, float]:
    times: dict[int, list[float]] = {direct: [], routed: []}
    for _ in range(num):
        for port in times:
            times[port].append(await first_token_ms(port))
    own, via = (statistics.median(times[port][num // 10 :]) for port in (direct, routed))
    return {"ttft_direct_p50_ms": round(own, 2), "ttft_added_p50_ms": round(via - own, 2)}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    ports = [options.port + i for i in range(5)]
    short, first, second, alone, routed = ports
    pace = (options.chunks, options.gap_ms / 1000)
    servers = [start_server(short, 1, 0), *(start_server(port, *pace) for port in (first, second, alone))]
    for port in ports[:4]:
        await wait_for(port)
    routers = [start_route(routed, [first, second]), start_route(routed + 1, [short])]
    try:
        await wait_for(routed)
        await wait_for(routed + 1)
        figures: dict[str, Any] = await added_latency(short, routed + 1, options.requests)
        before = cpu_s(servers[3].pid)
        direct = await measure(alone, options)
        server_s = cpu_s(servers[3].pid) - before
        before = cpu_s(routers[0].pid)
        via = await measure(routed, options)
        router_s = cpu_s(routers[0].pid) - before
    finally:
        for process in (*routers, *servers):
            process.kill()
            process.wait()
    return {
        **figures,
        "streams": options.streams,
        "byte_exact": via["byte_exact"],
        "gap_p99_ms_direct": direct["gap_ms"]["p99"],
        "gap_p99_ms_routed": via["gap_ms"]["p99"],
        "server_cpu_ms_per_stream": round(1000 * server_s / options.streams, 2),
        "router_cpu_ms_per_stream": round(1000 * router_s / options.streams, 2),
        "cpu_ratio_with_router": round((server_s + router_s) / server_s, 2),
    }


def report(name: str, figures: dict[str, Any], folder: Path | None) -> None:
    """Prints the figures, and writes them to `NAME-DATE.json` in the folder."""
    text = json.dumps(figures, indent=2)
    print(text)
    if folder is not None:
        (folder / f"{name}-{figures['date'][:10]}.json").write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--gap-ms", type=float, default=200)
    parser.add_argument("--ramp-s", type=float, default=4, help="seconds over which the streams are opened")
    parser.add_argument("--requests", type=int, default=200, help="requests for the time to the first token")
    parser.add_argument("--port", type=int, default=18490)
    parser.add_argument("--out", type=Path, help="folder for the figures, which are printed in any case")
    parser.add_argument("--route", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.route:
        uvloop.run(route(options.route[0], options.route[1:]))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    settings = {name: getattr(options, name) for name in ("chunks", "gap_ms", "ramp_s", "requests")}
    facts = {**machine_facts(), "cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1), **settings}
    gc.disable()
    report("route", facts | uvloop.run(run(options)), options.out)


if __name__ == "__main__":
    main()
