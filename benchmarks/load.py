"""Load generator: tokens per second, time to the first token and gaps at 1 to 512 concurrent streams.

    python -m benchmarks.load --engine --model nano --streams 1 8 16 [--decoder ar] [--schema] [--prompts 4096]
    python -m benchmarks.load --socket --model nano --streams 1 8 16 [--rate 20]
    python -m benchmarks.load --server --model nano --streams 1 8 16 [--rate 20] [--processes 4]
    python -m benchmarks.load --url http://127.0.0.1:8480 --model nano --streams 1 8 [--rate 20] [--processes 4]

`--engine` runs the engine in this process, without HTTP, and reports its time by phase. `--socket` runs it in a worker
process and reads its socket. `--server` adds the API in this process. Both report the time of the worker and of this
process by phase. `--url` and `--server` send streaming chat requests from several client processes, which only stamp
what arrives; it is parsed after the level. A closed loop keeps `--streams` requests open; `--rate` sends that many
requests per second instead (Poisson), up to `--streams` at a time, and counts the time to the first token from the
scheduled arrival. `--out` is the folder of a JSON report.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def requests_of(streams: int, scale: float) -> int:
    """Requests of a level: enough that ramp up and down do not dominate."""
    levels = ((1, 24), (8, 96), (32, 192), (64, 256), (128, 512), (512, 1024))
    count = next((count for size, count in levels if streams <= size), 4 * streams)
    return max(int(scale * count), streams, 2)


def run_engine(options: argparse.Namespace) -> list[dict[str, Any]]:
    from benchmarks.load_engine import LoadedEngine, closed_loop, equal_alone, long_prompts

    start = time.perf_counter()
    loaded = LoadedEngine.load(options)
    show({"start_s": round(time.perf_counter() - start, 1), **facts_of(loaded.engine)})
    closed_loop(loaded, 4, 8, 32)
    rows = []
    levels = [(streams, options.schema) for streams in options.streams]
    for streams, has_schema in levels + [(streams, True) for streams in options.schema_streams]:
        for _ in range(options.repeats):
            count = requests_of(streams, options.scale)
            row = closed_loop(loaded, streams, count, options.max_tokens, has_schema)
            rows.append({"schema": has_schema, **row})
            show(rows[-1])
    if options.check:
        rows.append(equal_alone(loaded, options.check, min(options.max_tokens, 64)))
        show(rows[-1])
    for num_tokens in options.prompts:
        rows.append(long_prompts(loaded, num_tokens))
        show(rows[-1])
    return rows


def facts_of(engine: Any) -> dict[str, Any]:
    cost = engine.backend.round_cost
    facts: dict[str, Any] = {
        "device": engine.info.device, "pages": engine.info.num_pages, "max_running": engine.config.running_limit,
    }  # fmt: skip
    if cost is not None:
        facts["forward_ms"] = {
            f"{rows}{'+' if gated else ''}": round(ms, 2) for (rows, gated), ms in cost.forward_ms.items()
        }
        facts["rounds_ms"] = {f"{one.num_requests}x{one.canvas_len}": round(one.ms, 2) for one in cost.rounds}
        facts["slots_ms"] = {one.num_requests: round(one.ms, 2) for one in cost.slots}
    return facts


def run_clients(options: argparse.Namespace) -> list[dict[str, Any]]:
    from benchmarks.load_clients import measure

    rows = []
    measure(options, 2, 4)
    for streams in options.streams:
        for _ in range(options.repeats):
            rows.append(measure(options, streams, requests_of(streams, options.scale)))
            show(rows[-1])
    return rows


def run_processes(options: argparse.Namespace) -> list[dict[str, Any]]:
    from benchmarks.load_socket import run

    return run(options, requests_of, show)


def show(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    report = {
        "benchmark": "load",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "gpu": gpu_name(),
            "load_average": os.getloadavg(),
        },
        "commit": commit or "unknown",
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
        "rows": rows,
    }
    path = Path(options.out) / f"load-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def gpu_name() -> str | None:
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--engine", action="store_true", help="the engine in this process")
    where.add_argument("--socket", action="store_true", help="the engine in a worker process, over its socket")
    where.add_argument("--server", action="store_true", help="a server in this process, with one worker process")
    where.add_argument("--url", help="a server with OpenAI's chat API")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8, 16])
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of requests of a level")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--schema", action="store_true", help="answers follow a JSON schema")
    parser.add_argument("--out", default="", help="folder of the report")
    engine = parser.add_argument_group("with --engine, --socket and --server")
    engine.add_argument("--decoder", default="verify", help="verify or ar")
    engine.add_argument("--weights", default="auto")
    engine.add_argument("--matmul", default="")
    engine.add_argument("--threads", type=int, default=0)
    engine.add_argument("--max-running", type=int, default=0)
    engine.add_argument("--max-rows", type=int, default=0)
    engine.add_argument("--prompts", type=int, nargs="*", default=[], help="lengths of long prompts to time alone")
    engine.add_argument("--schema-streams", type=int, nargs="*", default=[], help="levels with a JSON schema")
    engine.add_argument("--check", type=int, default=0, help="compare this many requests together with each alone")
    clients = parser.add_argument_group("with --socket, --server and --url")
    clients.add_argument("--rate", type=float, default=0.0, help="requests per second (Poisson); 0 is a closed loop")
    clients.add_argument("--processes", type=int, default=4)
    clients.add_argument("--key", default="", help="API key")
    return parser.parse_args()


def main() -> None:
    options = parse()
    run = run_engine if options.engine else run_clients if options.url else run_processes
    rows = run(options)
    if options.out:
        write(options, rows)


if __name__ == "__main__":
    main()
