"""Runs a real Prometheus against a server and evaluates every panel and alert: each panel must return a series.

    python -m tests.deploy.prometheus_run [--prometheus /usr/bin/prometheus] [--promtool /usr/bin/promtool]

The server has a scripted engine and listens on loopback. Prints a JSON summary; exits with 1 if `promtool check rules`
refuses the alerts, or if a panel returns nothing after 50 requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import yaml

from quicksilver.server.admin_app import build_admin_app
from quicksilver.server.run import make_listener
from tests.deploy.test_monitoring import DEPLOY, alert_expressions, panel_expressions
from tests.server.conftest import Served, chat

NUM_REQUESTS = 50
# Alerts compare a series with a bound; the series itself must exist.
COMPARISON = re.compile(r"\s(?:==|!=|>=?|<=?)\s[\d.]+$")


def expressions() -> dict[str, str]:
    alerts = {name: COMPARISON.sub("", text) for name, text in alert_expressions().items()}
    return {name: text.replace("$model", ".*") for name, text in {**panel_expressions(), **alerts}.items()}


def write_config(folder: Path, target: str) -> Path:
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    config["global"]["scrape_interval"] = "1s"
    config["rule_files"] = [str(DEPLOY / "alerts.yaml")]
    (scrape,) = config["scrape_configs"]
    del scrape["authorization"]
    scrape["static_configs"] = [{"targets": [target]}]
    path = folder / "prometheus.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def evaluate(url: str) -> tuple[list[str], dict[str, int]]:
    """Expressions that return nothing, and the number of series of each."""
    async with httpx.AsyncClient(base_url=url) as client:
        counts = {}
        for name, text in expressions().items():
            reply = (await client.get("/api/v1/query", params={"query": text})).json()
            counts[name] = len(reply["data"]["result"]) if reply["status"] == "success" else -1
    return [name for name, count in counts.items() if count < 1], counts


async def run(prometheus: str, folder: Path) -> tuple[list[str], dict[str, int]]:
    served = Served(folder)
    config = served.services.config
    listener = make_listener(build_admin_app(served.services), "127.0.0.1", 0, config)
    serving = asyncio.create_task(listener.serve())
    while not listener.started:
        await asyncio.sleep(0.05)
    target = f"127.0.0.1:{listener.servers[0].sockets[0].getsockname()[1]}"
    port = free_port()
    process = subprocess.Popen(
        [prometheus, f"--config.file={write_config(folder, target)}", f"--storage.tsdb.path={folder}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    )  # fmt: skip
    try:
        healthy = served.engine.script
        for number in range(NUM_REQUESTS):
            # Some requests are invalid, and some fail, so that every status has a series.
            served.engine.script = (lambda request: [RuntimeError()]) if number % 10 == 5 else healthy
            body = chat(f"request {number}") if number % 10 else {"model": "nano"}
            await served.post("/v1/chat/completions", body)
            await asyncio.sleep(0.2)
        # Rates of a series that is new need two scrapes.
        await asyncio.sleep(5)
        return await evaluate(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(20)
        listener.should_exit = True
        await serving


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="prometheus")
    parser.add_argument("--promtool", default="promtool")
    options = parser.parse_args()
    checked = subprocess.run([options.promtool, "check", "rules", str(DEPLOY / "alerts.yaml")], check=False)
    with tempfile.TemporaryDirectory() as folder:
        empty, counts = asyncio.run(run(options.prometheus, Path(folder)))
    report: dict[str, Any] = {"rules_ok": checked.returncode == 0, "expressions": len(counts), "empty": empty}
    sys.stdout.write(json.dumps(report, indent=2) + "\n")
    return int(bool(empty) or checked.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
