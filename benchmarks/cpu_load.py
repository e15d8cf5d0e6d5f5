"""Several streams on a CPU: the server, an earlier version of it, and llama.cpp with parallel sequences, in one run.

    python -m benchmarks.cpu_load --out results [--streams 16] [--requests 48] [--tokens 96] [--baseline CHECKOUT]

Each server runs with its defaults; clients stream chat answers from a process of their own, in a closed loop. llama.cpp
gets the same prompts, rendered by the same template, in as many slots of its server as there are streams (PyPI's
xllamacpp, see `cpu_decode.py`). The versions alternate and run twice; all runs are in the report, and the ratios
are those of the medians. Compare ratios, not tokens per second. `--baseline` is another checkout of this repository
whose weights are in place; it runs with the Python of this process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.cpu_decode import run_llama_cpp
from benchmarks.load_clients import measure
from benchmarks.load_prompts import KINDS, SYSTEM, text_of
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import resolve
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
SERVE = "import sys; from quicksilver.cli import main; sys.exit(main())"
START_S = 300


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def server(checkout: Path, model: str, *options: str, kept_log: Path | None = None) -> Iterator[str]:
    """A server of that checkout, on free ports."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-c", SERVE, "serve", "--model", model, *options]
    command += ["--port", str(port), "--admin-port", str(admin_port)]
    folders = os.pathsep.join(filter(None, [str(checkout), os.environ.get("PYTHONPATH")]))
    env = {**os.environ, "PYTHONPATH": folders}
    with kept_log.open("w") if kept_log is not None else tempfile.NamedTemporaryFile("w") as log:
        process = subprocess.Popen(command, cwd=checkout, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until_ready(process, f"http://127.0.0.1:{port}", Path(log.name))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.5)
    raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")


def ours(checkout: Path, options: Namespace) -> dict[str, Any]:
    with server(checkout, options.model) as url:
        asked = Namespace(url=url, model=options.model, max_tokens=options.tokens, schema=False, rate=0.0,
                          processes=1, key="")  # fmt: skip
        measure(asked, 2, 4)
        random.seed(0)  # `measure` picks the prompts: the same ones in each run
        return measure(asked, options.streams, options.requests)


def llama_cpp(options: Namespace) -> dict[str, Any] | None:
    tokenizer = Tokenizer.for_model(resolve(options.model).weights, None)
    template = ChatTemplate.for_tokenizer(tokenizer)
    texts = [text_of(KINDS[n % len(KINDS)], n // len(KINDS), n) for n in range(options.requests)]
    prompts = [template.render([Message("system", SYSTEM), Message("user", text)]).ids for text in texts]
    answers = run_llama_cpp(
        options.model, [tokenizer.decode(ids) for ids in prompts], options.tokens, options.threads, options.streams
    )
    if answers is None:
        return None
    tokens, seconds = sum(one["tokens"] for one in answers), max(one["ended_s"] for one in answers)
    first_ms = [1e3 * one["first_token_s"] for one in answers]
    return {"streams": options.streams, "requests": len(answers), "tokens": tokens,
            "tokens_per_s": round(tokens / seconds, 1), "ttft_ms": [round(statistics.median(first_ms), 1)]}  # fmt: skip


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of llama.cpp")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--baseline", type=Path, help="checkout of an earlier version")
    parser.add_argument("--skip-llama-cpp", action="store_true")
    parser.add_argument("--out", type=Path, help="folder of the report")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    versions: dict[str, Callable[[], dict[str, Any] | None]] = {"quicksilver": lambda: ours(ROOT, options)}
    if not options.skip_llama_cpp:
        versions["llama.cpp"] = lambda: llama_cpp(options)
    if options.baseline is not None:
        versions["baseline"] = lambda: ours(options.baseline.resolve(), options)
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(options.repeats):
        for name, run in versions.items():
            row = run()
            if row is not None:
                runs.setdefault(name, []).append(row)
                print(json.dumps({name: row}), flush=True)
    medians = {name: statistics.median(row["tokens_per_s"] for row in rows) for name, rows in runs.items()}
    settings = {name: getattr(options, name) for name in ("model", "streams", "requests", "tokens", "threads")}
    report = {
        "benchmark": "cpu_load", **machine_facts(), "cores": os.cpu_count(), "load_before": round(load, 1),
        "settings": settings, "baseline_commit": commit_of(options.baseline) if options.baseline else None,
        "tokens_per_s": medians,
        "ratios": {name: round(medians["quicksilver"] / rate, 2) for name, rate in medians.items()},
        "runs": runs,
    }  # fmt: skip
    print(json.dumps(report["ratios"]))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"cpu_load-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        (options.out / name).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
