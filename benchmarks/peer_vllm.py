"""The server beside vLLM, over HTTP: the same weights, prompts and clients, one server after the other on one GPU.

    python -m benchmarks.peer_folder --model coder-1.5b --out FOLDER       # the weights as vLLM reads them
    python -m benchmarks.peer_vllm --model coder-1.5b --folder FOLDER --out results [--vllm-command "vllm serve"]
        [--servers quicksilver vllm vllm-api4] [--streams 1 8 32 64 128 256] [--repeats 2] [--scale 1]
        [--vllm-env NAME=VALUE] [--limit-s 400] [--report-only]

Needs vLLM installed, in this environment or behind `--vllm-command` and `--vllm-env`. Each server starts on loopback
with its defaults (`vllm-api4`: with `--api-server-count 4`), is warmed up, and answers closed loops of streamed chat
requests: greedy, at most 256 tokens, 96 prompts of four kinds. Prompts of 4K and 16K tokens alone and answers under a
JSON Schema follow. OUT gets a file for each start, rewritten after each level, and `peer_vllm-DATE.json` with the
ratios, made of all those files, so that servers can be measured by several commands. `--limit-s` skips the levels that
would begin later than that after the start of a server.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.peer_clients import Clients, Load, Target
from benchmarks.peer_report import report_of
from benchmarks.peer_servers import Command, running
from quicksilver import __version__

REQUESTS = {1: 48, 8: 96, 32: 192, 64: 256, 128: 512, 256: 1024}
LONG_PROMPTS, NUM_LONG = (4096, 16384), 6
SCHEMA_LEVELS = ((1, 24), (32, 96))
TICKETS = 96_000  # between the first tickets of two levels; a multiple of the number of prompts


def warm_up(scale: float) -> list[Load]:
    """Every kind of request once, on tickets of its own."""
    first = 9 * TICKETS
    small = [Load("mixed", 1, 8, first), Load("schema", 4, 8, first + 96), Load("long", 1, 2, first + 192, 4096)]
    return [*small, Load("mixed", 64, max(int(192 * scale), 4), first + 960)]


def plan(streams: list[int], repeats: int, scale: float) -> list[Load]:
    """All levels once, the long prompts and the schemas, then the levels again."""
    passes = []
    for turn in range(repeats):
        for number, count in enumerate(streams):
            requests = max(int(REQUESTS.get(count, 4 * count) * scale), count)
            passes.append(Load("mixed", count, requests, TICKETS * number + turn * requests))
        if turn == 0:
            first = TICKETS * len(streams)
            longest = [Load("long", 1, max(int(NUM_LONG * scale), 1), first + n, n) for n in LONG_PROMPTS]
            schema = [Load("schema", n, max(int(count * scale), n), first + TICKETS * n) for n, count in SCHEMA_LEVELS]
            passes += longest + schema if scale >= 0.5 else schema
    return passes


def commands(options: argparse.Namespace) -> dict[str, Command]:
    """How each server starts. Only the model and the addresses are named."""
    ours = [
        sys.executable,
        "-m",
        "quicksilver",
        "serve",
        "--model",
        options.model,
        *shlex.split(options.quicksilver_options),
    ]
    theirs = f"{options.vllm_command} {options.folder} --served-model-name {options.model} --host 127.0.0.1"
    theirs += " --port {port}"
    env = dict(pair.split("=", 1) for pair in options.vllm_env)
    return {
        "quicksilver": Command(
            "quicksilver", shlex.join(ours) + " --port {port} --admin-port {admin_port}", "/ready", {}
        ),
        "vllm": Command("vllm", theirs, "/health", env),
        "vllm-api4": Command("vllm-api4", f"{theirs} --api-server-count 4", "/health", env),
    }


def measure(command: Command, options: argparse.Namespace) -> None:
    """All levels of one start of a server. The file has what was measured so far at any time."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = options.out / f"peer-{command.name}-{stamp}.json"
    found: dict[str, Any] = {
        "server": command.name,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command.words.replace(sys.executable, "python").replace(f" {options.folder} ", " FOLDER "),
        **machine(options),
        "rows": [],
        "answers": {},
    }
    begin = time.monotonic()
    with running(command, path.with_suffix(".log"), options.start_limit_s) as (port, facts):
        found |= facts | {"version": version_of(command, port)}
        print(json.dumps({"server": command.name, **facts, "version": found["version"]}), flush=True)
        clients = Clients(Target(port, options.model), options.processes)
        try:
            for load in warm_up(options.scale):
                row, _ = clients.run(load)
                print(json.dumps({"warm_up": True, **row}), flush=True)
            for load in plan(options.streams, options.repeats, options.scale):
                if time.monotonic() - begin > options.limit_s:
                    print(f"no time for {load}", flush=True)
                    continue
                row, replies = clients.run(load)
                found["rows"].append(row | ({"asked_tokens": load.prompt_tokens} if load.prompt_tokens else {}))
                if load.kind == "mixed" and load.streams == 1:
                    found["answers"] |= {str(load.first + one.number): one.text for one in replies}
                path.write_text(json.dumps(found, indent=1) + "\n")
                print(json.dumps(row), flush=True)
        finally:
            clients.close()


def version_of(command: Command, port: int) -> str:
    if command.name == "quicksilver":
        return __version__
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=10) as reply:
            return str(json.load(reply)["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"


def machine(options: argparse.Namespace) -> dict[str, Any]:
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu, driver = (
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.split("\n")[0].split(", ")
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        gpu, driver = "none", "none"
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "hardware": f"{gpu}, {os.cpu_count()} CPU cores",
        "driver": driver,
        "python": platform.python_version(),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "commit": options.commit or git or "unknown",
        "model": options.model,
        "client_processes": options.processes,
    }


def write_report(options: argparse.Namespace) -> None:
    starts = [json.loads(path.read_text()) for path in sorted(options.out.glob("peer-*.json"))]
    servers = {start["server"] for start in starts}
    if "quicksilver" not in servers or not servers & {"vllm", "vllm-api4"}:
        print("no report: it needs results of quicksilver and of vllm")
        return
    report = report_of(starts)
    path = options.out / f"peer_vllm-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    for name in ("load", "domains", "prompts", "schema"):
        for row in report[name]:
            print(json.dumps(row), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--folder", type=Path, default=Path(), help="the weights for vLLM, see benchmarks.peer_folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--servers", nargs="*", default=["quicksilver", "vllm", "vllm-api4"])
    parser.add_argument("--vllm-command", default="vllm serve")
    parser.add_argument("--vllm-env", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--quicksilver-options", default="", help="further options of `quicksilver serve`")
    parser.add_argument("--streams", type=int, nargs="*", default=list(REQUESTS))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of requests of a level")
    parser.add_argument("--processes", type=int, default=8, help="client processes")
    parser.add_argument("--start-limit-s", type=float, default=300.0)
    parser.add_argument("--limit-s", type=float, default=3600.0)
    parser.add_argument("--commit", default="")
    parser.add_argument("--report-only", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # servers are stopped on the way out
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.report_only:
        known = commands(options)
        for name in options.servers:
            measure(known[name], options)
    write_report(options)


if __name__ == "__main__":
    main()
