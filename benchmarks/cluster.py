"""What a Ray cluster adds to a server with one engine worker, as differences and ratios from one run.

    python -m benchmarks.cluster [--streams 200] [--chunks 20] [--gap-ms 200] [--out benchmarks/results]

Needs Ray. The worker has a scripted engine. It runs behind an API process (`single`), and behind a replica of a cluster
on this machine, which another API process calls. Printed: the time to the first token of both at concurrency 1, in
alternation; processor seconds per stream of API process, replica and worker, relative to those of API process and
worker; and how many of many streams at once came back byte-exact. Ray's own processes (raylet, GCS, controller, agents)
also work without streams; their processor time is a figure of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import uvloop

from benchmarks.http_streams import Metronome, measure, serve, wait_for
from benchmarks.route import added_latency, cpu_s, report
from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig, ClusterModel
from quicksilver.evals.report import machine_facts
from quicksilver.worker import server as worker_server
from quicksilver.worker.client import RemoteEngine
from tests.support.scripted_worker import ScriptedEngine

ROOT = Path(__file__).parent.parent
# The models: one chunk at once, and many chunks at a pace.
SHORT, PACED = "short", "paced"


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.cluster", *map(str, words)]


def worker_command(options: argparse.Namespace, model: str) -> list[str]:
    chunks, gap_ms = (1, 0.0) if model == SHORT else (options.chunks, options.gap_ms)
    return command("--worker", "--chunks", chunks, "--gap-ms", gap_ms)


async def serve_single(port: int, worker: list[str]) -> None:
    await serve(port, await RemoteEngine(worker).start())


async def serve_cluster(port: int, address: str, model: str) -> None:
    deploy.connect(ClusterConfig((), address, python_path=str(ROOT)))
    await serve(port, await deploy.open_engine(model).start())


def start_cluster(options: argparse.Namespace) -> str:
    """Starts Ray with one replica of each model; returns its address."""
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    models = tuple(ClusterModel(name, num_cpus=0, max_open=1024) for name in (SHORT, PACED))
    config = ClusterConfig(models, python_path=str(ROOT))
    deploy.connect(config)
    deploy.deploy(config, lambda model: worker_command(options, model.model)[1:])
    import ray

    return str(ray.get_runtime_context().gcs_address)


class Processes:
    """The processes below this one, by what they do."""

    def __init__(self) -> None:
        self.parents: dict[int, int] = {}
        self.names: dict[int, str] = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                self.names[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
            self.parents[int(folder.name)] = int(fields[1])

    def below(self, pid: int) -> set[int]:
        """A process and its descendants."""
        found, children = {pid}, {pid}
        while children := {child for child, parent in self.parents.items() if parent in children} - found:
            found |= children
        return found

    def replica(self, model: str) -> set[int]:
        """The replica of a model and its worker."""
        name = f"ray::ServeReplica:engine-{model}"
        (pid,) = (pid for pid in self.below(os.getpid()) if self.names.get(pid, "").startswith(name))
        return self.below(pid)


def total_s(pids: set[int]) -> float:
    return sum(cpu_s(pid) for pid in pids if Path(f"/proc/{pid}").exists())


async def compare(options: argparse.Namespace, ports: list[int], servers: list[subprocess.Popen[bytes]]) -> Any:
    short, paced, cluster_short, cluster_paced = ports
    for port in ports:
        await wait_for(port)
    figures: dict[str, Any] = await added_latency(short, cluster_short, options.requests)
    processes = Processes()
    single = processes.below(servers[1].pid)
    cluster = processes.below(servers[3].pid) | processes.replica(PACED)
    others = processes.below(os.getpid()) - {os.getpid()}
    others -= {pid for server in servers for pid in processes.below(server.pid)} | cluster | processes.replica(SHORT)
    before = total_s(single)
    direct = await measure(paced, options)
    single_s = total_s(single) - before
    before = [total_s(pids) for pids in (cluster, others)]
    via = await measure(cluster_paced, options)
    cluster_s, others_s = (total_s(pids) - start for pids, start in zip((cluster, others), before, strict=True))
    per_stream = {
        f"{name}_cpu_ms_per_stream": round(1000 * seconds / options.streams, 2)
        for name, seconds in (("single", single_s), ("cluster", cluster_s), ("ray_processes", others_s))
    }
    return {
        **figures,
        "streams": options.streams,
        "byte_exact_single": direct["byte_exact"],
        "byte_exact_cluster": via["byte_exact"],
        "gap_p99_ms_single": direct["gap_ms"]["p99"],
        "gap_p99_ms_cluster": via["gap_ms"]["p99"],
        **per_stream,
        "cpu_ratio": round(cluster_s / single_s, 2),
        "cpu_ratio_with_ray_processes": round((cluster_s + others_s) / single_s, 2),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    address = start_cluster(options)
    ports = [options.port + i for i in range(4)]
    words: list[list[object]] = [["--model", model] for model in (SHORT, PACED)]
    words += [["--model", model, "--join", address] for model in (SHORT, PACED)]
    pace = ["--chunks", options.chunks, "--gap-ms", options.gap_ms]
    servers = [
        subprocess.Popen(command("--serve", port, *pace, *more)) for port, more in zip(ports, words, strict=True)
    ]
    try:
        return cast(dict[str, Any], uvloop.run(compare(options, ports, servers)))
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        import ray

        ray.shutdown()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--gap-ms", type=float, default=200)
    parser.add_argument("--ramp-s", type=float, default=4, help="seconds over which the streams are opened")
    parser.add_argument("--requests", type=int, default=200, help="requests for the time to the first token")
    parser.add_argument("--port", type=int, default=18590)
    parser.add_argument("--out", type=Path, help="folder for the figures, which are printed in any case")
    for name in ("--serve", "--model", "--join", "--socket"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.worker:
        engine = ScriptedEngine(Metronome(options.chunks, options.gap_ms / 1000))
        asyncio.run(worker_server.serve(cast(Any, engine), Path(options.socket)))
    elif options.serve and options.join:
        uvloop.run(serve_cluster(int(options.serve), options.join, options.model))
    elif options.serve:
        uvloop.run(serve_single(int(options.serve), worker_command(options, options.model)))
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        settings = {name: getattr(options, name) for name in ("chunks", "gap_ms", "ramp_s", "requests")}
        facts = {**machine_facts(), "cores": os.cpu_count(), "load_before": round(os.getloadavg()[0], 1), **settings}
        gc.disable()
        report("cluster", facts | run(options), options.out)


if __name__ == "__main__":
    main()
