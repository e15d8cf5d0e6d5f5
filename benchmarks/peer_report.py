"""The report of `peer_vllm.py`: means over all starts and runs of each server, and their ratios."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

Row = dict[str, Any]
OURS, PEER, PEER_API = "quicksilver", "vllm", "vllm-api4"
DOMAIN_NAMES = {"json": "JSON", "edit": "edits"}


def report_of(starts: list[Row]) -> Row:
    """The results of several servers as one report; `peer_*` are vLLM's figures beside ours. Where vLLM only ran with
    several API processes, that is the peer."""
    first = next(start for start in starts if start["server"] == OURS)
    has_default = any(start["server"] == PEER for start in starts)
    if not has_default:
        starts = [start | {"server": PEER} if start["server"] == PEER_API else start for start in starts]
    peer = next(start for start in starts if start["server"] == PEER)
    rows = {name: rows_of(starts, name) for name in (OURS, PEER, PEER_API)}
    return {
        "benchmark": "peer_vllm",
        "date": max(start["date"] for start in starts),
        **{name: first[name] for name in ("hardware", "driver", "python", "commit", "model")},
        "peer": f"vLLM {peer['version']}" + ("" if has_default else ", 4 API processes"),
        "settings": {
            "weights": "the same GGUF, bfloat16 on both",
            "client": "closed loop, streamed /v1/chat/completions, temperature 0, max_tokens 256, 96 prompts: code, "
            f"chat, JSON extraction, whole-file edits; {first['client_processes']} client processes",
            "commands": {start["server"]: start["command"] for start in starts},
        },
        "starts": [
            {name: start.get(name) for name in ("server", "date", "version", "start_s", "loaded_s", "gpu_memory_mib")}
            for start in starts
        ],
        "load": load_rows(rows),
        "domains": domain_rows(rows),
        "prompts": prompt_rows(rows),
        "schema": schema_rows(rows),
        "equal_answers": equal_answers(starts),
        "rows": rows,
    }


def rows_of(starts: list[Row], server: str) -> list[Row]:
    return [row for start in starts if start["server"] == server for row in start["rows"]]


def load_rows(rows: dict[str, list[Row]]) -> list[Row]:
    found = []
    for streams in levels(rows[OURS] + rows[PEER], "mixed"):
        runs = {name: of_level(rows[name], "mixed", streams) for name in rows}
        if not runs[OURS] or not runs[PEER]:
            continue
        row: Row = {"requests": streams, **level_figures(runs[OURS]), **prefixed("peer_", level_figures(runs[PEER]))}
        if runs[PEER_API]:
            row |= prefixed("peer_api4_", level_figures(runs[PEER_API]))
        rates = [row["peer_tok_per_s"], row.get("peer_api4_tok_per_s", 0)]
        row |= {
            "ratio": round(row["tok_per_s"] / rates[0], 2),
            "ratio_to_better": round(row["tok_per_s"] / max(rates), 2),
        }
        found.append(row)
    return found


def level_figures(runs: list[Row]) -> Row:
    """Means of the runs of one level."""
    return {
        "tok_per_s": round(mean(runs, lambda run: run["tokens_per_s"])),
        "runs": [round(run["tokens_per_s"]) for run in runs],
        "ttft_ms": round(mean(runs, lambda run: run["ttft_ms"][0]), 1),
        "ttft_p99_ms": round(mean(runs, lambda run: run["ttft_ms"][1]), 1),
        "gap_p99_ms": round(mean(runs, lambda run: run["gap_ms"][1]), 1),
        "answer_ms": round(mean(runs, lambda run: run["answer_ms"][0]), 1),
        "tokens_per_chunk": round(mean(runs, lambda run: run["tokens_per_chunk"]), 2),
        "failed": sum(run["failed"] for run in runs),
        "client_core_share": max(run["client_core_share"] for run in runs),
    }


def domain_rows(rows: dict[str, list[Row]]) -> list[Row]:
    runs = {name: [run for run in of_level(rows[name], "mixed", 1) if "domains" in run] for name in (OURS, PEER)}
    domains = ("chat", "code", "json", "edit")
    return [
        {
            "domain": DOMAIN_NAMES.get(domain, domain),
            "tok_per_s": round(mean(runs[OURS], lambda run, d=domain: run["domains"][d])),  # type: ignore[misc]
            "peer_tok_per_s": round(mean(runs[PEER], lambda run, d=domain: run["domains"][d])),  # type: ignore[misc]
        }
        for domain in domains
        if all(domain in run["domains"] for name in (OURS, PEER) for run in runs[name]) and runs[OURS] and runs[PEER]
    ]


def prompt_rows(rows: dict[str, list[Row]]) -> list[Row]:
    found = []
    for asked in sorted({row["asked_tokens"] for row in rows[OURS] if row["kind"] == "long"}):
        runs = {
            name: [run for run in rows[name] if run.get("asked_tokens") == asked and "ttft_ms" in run] for name in rows
        }
        if runs[OURS] and runs[PEER]:
            tokens = runs[OURS][0]["prompt_tokens"] / (runs[OURS][0]["requests"] - runs[OURS][0]["failed"])
            ours, theirs = (round(mean(runs[name], lambda run: run["ttft_ms"][0]), 1) for name in (OURS, PEER))
            row = {"prompt_tokens": round(tokens), "asked_tokens": asked, "ttft_ms": ours, "peer_ttft_ms": theirs}
            found.append(row | {"ratio": round(ours / theirs, 2)})
    return found


def schema_rows(rows: dict[str, list[Row]]) -> list[Row]:
    found = []
    for streams in levels(rows[OURS], "schema"):
        runs = {name: of_level(rows[name], "schema", streams) for name in (OURS, PEER)}
        if runs[OURS] and runs[PEER]:
            ours, theirs = schema_figures(runs[OURS]), schema_figures(runs[PEER])
            ratio = round(ours["requests_per_s"] / theirs["requests_per_s"], 2)
            found.append({"requests": streams, **ours, **prefixed("peer_", theirs), "ratio": ratio})
    return found


def schema_figures(runs: list[Row]) -> Row:
    return {
        "requests_per_s": round(mean(runs, lambda run: run["requests_per_s"]), 1),
        "tok_per_s": round(mean(runs, lambda run: run["tokens_per_s"])),
        "ttft_ms": round(mean(runs, lambda run: run["ttft_ms"][0]), 1),
        "gap_p99_ms": round(mean(runs, lambda run: run["gap_ms"][1]), 1),
        "valid": f"{sum(run['valid'] for run in runs)} of {sum(run['requests'] for run in runs)}",
    }


def equal_answers(starts: list[Row]) -> Row:
    """How many answers of one request at a time are the same text on both servers."""
    answers: dict[str, dict[str, str]] = {}
    for start in starts:
        answers.setdefault(start["server"], {}).update(start["answers"])
    both = answers[OURS].keys() & answers[PEER].keys()
    return {"compared": len(both), "equal": sum(answers[OURS][key] == answers[PEER][key] for key in both)}


def levels(rows: Iterable[Row], kind: str) -> list[int]:
    return sorted({row["streams"] for row in rows if row["kind"] == kind})


def of_level(rows: Iterable[Row], kind: str, streams: int) -> list[Row]:
    return [row for row in rows if row["kind"] == kind and row["streams"] == streams and "tokens_per_s" in row]


def prefixed(prefix: str, row: Row) -> Row:
    return {prefix + name: value for name, value in row.items()}


def mean(runs: list[Row], value: Callable[[Row], float]) -> float:
    return statistics.fmean(map(value, runs)) if runs else 0.0
