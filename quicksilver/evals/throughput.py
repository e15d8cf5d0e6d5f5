"""Measured throughput from result files of the benchmarks, and what it costs per token.

Reads reports of `benchmarks.load` (engine or server, any number of streams), of `benchmarks.gpu_coder` (one stream and
several) and of the comparison with vLLM (server). Only output tokens are counted; the prompts of the benchmark were
computed in the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quicksilver.errors import InvalidRequest

SECONDS_PER_HOUR = 3600
# Of `gpu_coder`, which names the file of the weights.
MODEL_OF_FILE = {"nano.gguf": "nano", "coder.gguf": "coder-1.5b"}
AS_SERVED = "verify, as served"


@dataclass(frozen=True, slots=True)
class Throughput:
    """Output tokens per second of one machine with a number of concurrent streams."""

    model: str
    hardware: str
    # `engine`: without HTTP; `socket`: the engine in a worker process, without HTTP; `server`: streamed chat requests.
    path: str
    streams: int
    tokens_per_s: float
    date: str
    file: str


@dataclass(frozen=True, slots=True)
class Cost:
    measured: Throughput
    tokens_per_hour: float
    price_per_million: float


def cost_of(measured: Throughput, price_per_hour: float, utilisation: float = 1.0) -> Cost:
    """`utilisation` is the share of the hour in which the machine has the measured load."""
    tokens = measured.tokens_per_s * SECONDS_PER_HOUR * utilisation
    return Cost(measured, tokens, price_per_hour / tokens * 1e6)


def read_results(folder: Path) -> list[Throughput]:
    """The newest figure for each model, hardware, path and number of streams, in this order."""
    if not folder.is_dir():
        raise InvalidRequest(f"no folder {folder}: name the folder of result files with --results", param="results")
    newest: dict[tuple[str, str, str, int], Throughput] = {}
    for path in sorted(folder.glob("*.json")):
        for found in read_report(json.loads(path.read_text()), path.name):
            key = (found.model, found.hardware, found.path, found.streams)
            if key not in newest or newest[key].date <= found.date:
                newest[key] = found
    return [newest[key] for key in sorted(newest)]


def read_report(report: Any, file: str) -> Iterator[Throughput]:
    """The figures of one report; none if it measures something else."""
    kind = report.get("benchmark") if isinstance(report, Mapping) else None
    if kind == "load":
        settings = report["settings"]
        # At a given rate of arrivals the throughput is that of the clients.
        if not settings.get("rate"):
            path = "engine" if settings["engine"] else "socket" if settings.get("socket") else "server"
            rows = ((row["streams"], row["tokens_per_s"]) for row in report["rows"] if is_level(row))
            yield from _figures(report, file, settings["model"], path, rows)
    elif kind == "peer_vllm":
        rows = ((row["requests"], row["tok_per_s"]) for row in report["load"])
        yield from _figures(report, file, report["model"], "server", rows)
    elif kind == "gpu_coder" and report.get("base") in MODEL_OF_FILE:
        yield from _figures(report, file, MODEL_OF_FILE[report["base"]], "engine", _coder_rows(report["sections"]))


def is_level(row: Mapping[str, Any]) -> bool:
    """Whether a row of `benchmarks.load` is a level of concurrent streams without a schema."""
    return "tokens_per_s" in row and "streams" in row and not row.get("schema")


def _coder_rows(sections: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """One stream: all domains together. Several streams: as they were measured."""
    single = [row for row in sections.get("speed", ()) if row["way"] == AS_SERVED]
    if single:
        seconds = sum(row["tokens"] / row["tok_per_s"] for row in single)
        yield 1, sum(row["tokens"] for row in single) / seconds
    for row in sections.get("streams", ()):
        if row["way"] == AS_SERVED:
            yield row["streams"], row["tok_per_s"]


def _figures(
    report: Mapping[str, Any], file: str, model: str, path: str, rows: Iterable[tuple[int, float]]
) -> Iterator[Throughput]:
    for streams, tokens_per_s in rows:
        yield Throughput(model, _hardware(report), path, streams, float(tokens_per_s), report["date"][:10], file)


def _hardware(report: Mapping[str, Any]) -> str:
    if "machine" in report:
        machine = report["machine"]
        return str(machine.get("gpu") or f"{machine['cpu']}, {machine['cores']} cores")
    return str(report["hardware"]).split(",")[0]


def choose(
    measured: Iterable[Throughput], model: str = "", streams: int = 0, hardware: str = "", path: str = ""
) -> list[Throughput]:
    """The figures that fit; empty arguments fit all. Raises InvalidRequest, with what was measured, if none fits:
    throughput at another number of streams or on another machine cannot be computed from these figures."""
    known = list(measured)
    chosen = [
        each
        for each in known
        if model in ("", each.model)
        and streams in (0, each.streams)
        and hardware.lower() in each.hardware.lower()
        and path in ("", each.path)
    ]
    if not chosen:
        raise InvalidRequest(f"no measurement fits; measured: {summary(known) or 'nothing'}")
    return chosen


def summary(measured: Iterable[Throughput]) -> str:
    """Which streams were measured for which model, hardware and path."""
    groups: dict[str, list[str]] = {}
    for each in measured:
        groups.setdefault(f"{each.model} on {each.hardware} ({each.path})", []).append(str(each.streams))
    return "; ".join(f"{name}: {', '.join(streams)} streams" for name, streams in groups.items())
