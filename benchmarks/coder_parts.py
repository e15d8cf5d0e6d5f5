"""The measurements of `gpu_coder`, one function each. They write rows to a `Book`.

Every row is on disk before the next measurement starts. End-of-sequence tokens count, as in `evals/speed.py`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.coder_answers import (
    AR,
    Replies,
    Reply,
    Way,
    answer_all,
    as_served,
    read,
    tree_rows_of,
    two_forwards,
)
from benchmarks.coder_prompts import DOMAINS, domain_asks, mixed_asks, task_asks, task_items
from benchmarks.coder_report import Book
from quicksilver.core import FinishReason
from quicksilver.engine.config import MAX_TREE_ROWS
from quicksilver.engine.engine import Engine
from quicksilver.evals.catalogue import pick_tasks
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.report import Cell, Record, Report, machine_facts, write_reports
from quicksilver.evals.run import decoder_label
from quicksilver.evals.speed import speed_of, total
from quicksilver.evals.task import Generate

LONE_WAYS = (
    AR, *(two_forwards(16, tree_rows=rows) for rows in (MAX_TREE_ROWS, 16, 0)), two_forwards(8),
)  # fmt: skip
# And how many questions at a time.
ROUND_WAYS = (
    (two_forwards(16, tree_rows=MAX_TREE_ROWS), 1), (two_forwards(16, tree_rows=0), 24),
    (two_forwards(8, tree_rows=0), 24),
)  # fmt: skip
STREAMS = (1, 8, 32, 64)
TASKS = ("humaneval", "mbpp", "humaneval_infill_randomlight", "next_edit", "humaneval_infill_single", "gsm8k")
UNCAPPED = ("humaneval", "mbpp", "gsm8k")
NO_CAP = 1024


@dataclass(frozen=True, slots=True)
class Bench:
    engine: Engine
    writer: PromptBuilder
    data: Path
    book: Book
    # A value below 1 uses fewer and shorter questions, for trying the code.
    scale: float = 1.0
    domains: tuple[str, ...] = tuple(DOMAINS)
    tasks: tuple[str, ...] = TASKS

    @property
    def served(self) -> Way:
        return as_served(self.writer.tokenizer)

    @property
    def lone_ways(self) -> tuple[Way, ...]:
        return (*LONE_WAYS, self.served)

    def count(self, usual: int) -> int:
        return max(1, round(usual * self.scale))

    def length(self, usual: int) -> int:
        return max(4, round(usual * min(1.0, 2 * self.scale)))


def speed(bench: Bench, seconds: float) -> None:
    """Batch 1: tokens per second by domain and decoder, and whether the text equals that of AR."""
    deadline = time.perf_counter() + seconds
    warm_asks = mixed_asks(bench.data, bench.writer, 1, bench.length(64), bench.domains)
    for way in bench.lone_ways:
        answer_all(bench.engine, warm_asks, way, 1, deadline - time.perf_counter())
    for domain in bench.domains:
        _domain_speed(bench, domain, deadline)
    rows = bench.book.sections.get("speed", [])
    for way in bench.lone_ways:
        if any(row["way"] == way.name and row["answers"] for row in rows):
            bench.book.add("averages", {"way": way.name, **average_row(rows, way)})


def _domain_speed(bench: Bench, domain: str, deadline: float) -> None:
    asks = domain_asks(domain, bench.data, bench.writer, bench.count(6), bench.length(192))
    said: list[Reply | None] = []
    ar_speed = 0.0
    for way in bench.lone_ways:
        left = deadline - time.perf_counter()
        if left <= 0:
            return
        found = answer_all(bench.engine, asks, way, 1, left)
        row: dict[str, Any] = {"domain": domain, "way": way.name, **lone_row(found)}
        said, ar_speed = said or found.replies, ar_speed or row["decode_tok_per_s"]
        pairs = [(a, b) for a, b in zip(said, found.replies, strict=True) if a is not None and b is not None]
        row |= {"over_ar": row["decode_tok_per_s"] / ar_speed if ar_speed else None}
        row |= {"same_as_ar": sum(a.token_ids == b.token_ids for a, b in pairs)}
        if way.is_fixed:
            row |= {"tree_rows": tree_rows_of(bench.engine, way) if way.decoder.canvas_len == 16 else 0}
        bench.book.add("speed", row)


def lone_row(found: Replies) -> dict[str, Any]:
    """`decode_*` is measured from the first token; `tok_per_s` includes the prompt."""
    whole = found.whole
    tokens, rounds = _num_tokens(whole), sum(reply.usage.rounds for reply in whole if reply.usage)
    decode_s = sum(reply.seconds - reply.first_s for reply in whole)
    behind = tokens - sum(reply.num_first for reply in whole)
    return {
        "answers": len(whole),
        "tokens": tokens,
        "tok_per_s": tokens / found.seconds,
        "decode_tok_per_s": behind / decode_s if decode_s else 0.0,
        "tokens_per_round": tokens / rounds if rounds else None,
        "ms_per_round": 1e3 * decode_s / (rounds or behind or 1),
        "first_ms": 1e3 * statistics.median(reply.first_s for reply in whole) if whole else None,
    }


def average_row(rows: Sequence[dict[str, Any]], way: Way) -> dict[str, Any]:
    """Means over the domains. `over_ar` is the ratio of the means. Domains without both measurements are excluded."""
    mine, ar = ([row for row in rows if row["way"] == name and row["answers"]] for name in (way.name, AR.name))
    both = {row["domain"] for row in mine} & {row["domain"] for row in ar}
    mine, ar = ([row for row in some if row["domain"] in both] for some in (mine, ar))
    speeds = statistics.mean(row["decode_tok_per_s"] for row in mine)
    yields = [row["tokens_per_round"] for row in mine if row["tokens_per_round"]]
    return {
        "decode_tok_per_s": speeds,
        "tok_per_s": statistics.mean(row["tok_per_s"] for row in mine),
        "tokens_per_round": statistics.mean(yields) if yields else None,
        "over_ar": speeds / statistics.mean(row["decode_tok_per_s"] for row in ar),
        "same_as_ar": f"{sum(row['same_as_ar'] for row in mine)}/{sum(row['answers'] for row in mine)}",
    }


def device(bench: Bench, seconds: float) -> None:
    """Forward times that the engine measured at start-up, and the canvas lengths that follow from them."""
    pace = bench.engine.scheduler.canvas_length.round_cost
    for graph in pace.rounds if pace else ():
        bench.book.add("device", {"round": graph.canvas_len, "requests": graph.num_requests, "ms": graph.ms,
                                  "tree_rows": graph.tree_rows})  # fmt: skip
    for (rows, is_gated), ms in sorted(pace.forward_ms.items()) if pace else ():
        bench.book.add("device", {"rows": rows, "with_adapter": is_gated, "ms": ms})
    for count in STREAMS if pace else ():
        chances = {chance: [chance**place for place in range(1, 16)] for chance in (0.5, 0.7, 0.8, 0.9)}
        lengths = {f"at_{c}": pace.canvas_len(count, survival) for c, survival in chances.items()} if pace else {}
        bench.book.add("device", {"streams": count, **lengths})


def _num_tokens(replies: Sequence[Reply]) -> int:
    return sum(len(reply.token_ids) + (reply.finish is FinishReason.STOP) for reply in replies)


def rounds(bench: Bench, seconds: float) -> None:
    """Tokens per round by domain on more text than `speed` uses: single requests, which use draft trees, and
    batches."""
    deadline = time.perf_counter() + seconds
    for domain in bench.domains:
        asks = domain_asks(domain, bench.data, bench.writer, bench.count(48), bench.length(192))
        for way, at_once in ROUND_WAYS:
            found = answer_all(bench.engine, asks, way, at_once, deadline - time.perf_counter())
            row = {"domain": domain, "canvas_len": way.decoder.canvas_len, "tree_rows": tree_rows_of(bench.engine, way)}
            bench.book.add("rounds", row | _yield_of(found.replies))


def _yield_of(replies: Sequence[Reply | None]) -> dict[str, Any]:
    row = lone_row(Replies(list(replies), 1.0))
    return {name: row[name] for name in ("answers", "tokens", "tokens_per_round")}


def streams(bench: Bench, seconds: float) -> None:
    """Total tokens per second of many streams: AR, and `verify` as scheduled by the engine."""
    deadline = time.perf_counter() + seconds
    for count in STREAMS:
        if time.perf_counter() > deadline:
            return
        asks = mixed_asks(bench.data, bench.writer, bench.count(max(8, 3 * count)), bench.length(192), bench.domains)
        short = [replace(ask, max_new_tokens=bench.length(24)) for ask in asks[:count]]
        best: dict[str, dict[str, Any]] = {}
        for way in (AR, bench.served, AR, bench.served):
            if way.name not in best:
                answer_all(bench.engine, short, way, count, deadline - time.perf_counter())
            left = deadline - time.perf_counter()
            if left <= 0:
                break
            row = {"streams": count, "way": way.name, **crowd_row(answer_all(bench.engine, asks, way, count, left))}
            if row["tok_per_s"] > best.get(way.name, {"tok_per_s": 0.0})["tok_per_s"]:
                best[way.name] = row
        for row in best.values():
            bench.book.add("streams", row | {"over_ar": row["tok_per_s"] / best[AR.name]["tok_per_s"]})


def crowd_row(found: Replies) -> dict[str, Any]:
    usages = [reply.usage for reply in found.whole if reply.usage is not None]
    rounds_, forwards = sum(usage.rounds for usage in usages), sum(usage.forwards for usage in usages)
    tokens = _num_tokens(found.whole)
    return {
        "answers": len(found.whole),
        "is_cut": None in found.replies,
        "tokens": tokens,
        "seconds": found.seconds,
        "tok_per_s": found.num_tokens / found.seconds,
        "tokens_per_forward": tokens / forwards if forwards else None,
        "tokens_per_round": tokens / rounds_ if rounds_ else None,
    }


def fim(bench: Bench, seconds: float) -> None:
    """Latency of an infill at batch 1, prompt included: 32 tokens, and one line with a line break as stop string."""
    deadline = time.perf_counter() + seconds
    kinds = (("32 tokens", "fim_python_lines"), ("one line", "humaneval_infill_single"))
    for kind, task in kinds:
        asks = task_asks(task, bench.data, bench.writer, bench.count(40))
        asks = [replace(ask, max_new_tokens=min(32, ask.max_new_tokens)) for ask in asks]
        for way in (bench.served, AR):
            found = [reply for ask in asks for reply in _alone(bench, ask, way, deadline)]
            wanted = [reply for reply in found if kind == "one line" or len(reply.token_ids) == 32] or found
            if not wanted:
                return
            bench.book.add("fim", {"kind": kind, "way": way.name, **latency_row(wanted)})


def _alone(bench: Bench, ask: Generate, way: Way, deadline: float) -> list[Reply]:
    """Run one question on an idle engine."""
    time.sleep(0.02)
    return answer_all(bench.engine, [ask], way, 1, deadline - time.perf_counter()).whole


def latency_row(replies: Sequence[Reply]) -> dict[str, Any]:
    times = sorted(1e3 * reply.seconds for reply in replies)
    return {
        "answers": len(replies),
        "tokens": statistics.mean(len(reply.token_ids) for reply in replies),
        "prompt": statistics.median(reply.usage.prompt_tokens for reply in replies if reply.usage),
        "p50_ms": times[len(times) // 2],
        "p90_ms": times[9 * len(times) // 10],
        "first_ms": 1e3 * statistics.median(reply.first_s for reply in replies),
    }


def equality(bench: Bench, seconds: float) -> None:
    """Whether `verify` equals AR token for token, for an engine in fp32."""
    deadline = time.perf_counter() + seconds
    asks = mixed_asks(bench.data, bench.writer, bench.count(50), bench.length(64), bench.domains)
    said = answer_all(bench.engine, asks, AR, len(asks), seconds)
    for canvas_len in (16, 8):
        left = deadline - time.perf_counter()
        if left <= 0:
            return
        found = answer_all(bench.engine, asks, two_forwards(canvas_len), len(asks), left)
        pairs = [(a, b) for a, b in zip(said.replies, found.replies, strict=True) if a and b]
        same = [a.token_ids == b.token_ids and a.is_whole and b.is_whole for a, b in pairs]
        row = {"dtype": bench.engine.info.dtype, "canvas_len": canvas_len, "prompts": len(asks)}
        row |= {"compared": len(pairs), "same": sum(same), "ar_seconds": said.seconds}
        bench.book.add("equality", {**row, "part_at": [_part_at(a, b) for a, b in pairs if a.token_ids != b.token_ids]})


def _part_at(a: Reply, b: Reply) -> int:
    """Index of the first token in which two answers differ."""
    pairs = list(zip(a.token_ids, b.token_ids, strict=False))
    return next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))


def tasks(bench: Bench, seconds: float) -> None:
    """Answers of whole tasks under AR, then under verify with canvases of 16; scores come later (`eval_gpu --rescore`).

    All tasks share one queue, so that no task waits for its last answer. Where time runs out, a task keeps the items
    before the first unanswered one: which those are depends on the task's name, never on how long answers were."""
    deadline = time.perf_counter() + seconds
    work = [(name, *item) for name in bench.tasks for item in _uncapped(bench, name)]
    asks = [ask for *_, ask in work]
    print(f"   {len(asks)} questions", flush=True)
    cells: list[Cell] = []
    for way, at_once, share in ((AR, 64, 0.5), (two_forwards(16), 24, 1.0)):
        left = (deadline - time.perf_counter()) * share
        found = answer_all(bench.engine, asks, way, at_once, left, bench.writer.tokenizer)
        bench.book.add("tasks", {"way": way.name, "streams": at_once, **crowd_row(found)})
        for name in bench.tasks:
            mine = [(entry, reply) for entry, reply in zip(work, found.replies, strict=True) if entry[0] == name]
            cells.append(_cell(bench, name, way, mine, found.seconds))
        info = {"model": bench.engine.info.model, "dtype": bench.engine.info.dtype}
        settings = {"max_new_tokens": NO_CAP, "streams": at_once, "seed": 0}
        report = Report(bench.engine.info.model, tuple(cells), settings, info, machine_facts())
        write_reports([report], bench.book.folder / "coder-evals.json")


def _uncapped(bench: Bench, name: str) -> list[tuple[int, Any, Generate]]:
    items = task_items(name, bench.data, bench.writer, bench.count(10_000))
    most = bench.length(NO_CAP) if name in UNCAPPED else 0
    return [(index, item, replace(ask, max_new_tokens=most or ask.max_new_tokens)) for index, item, ask in items]


def _cell(bench: Bench, name: str, way: Way, mine: Sequence[tuple[Any, Reply | None]], seconds: float) -> Cell:
    (task,) = pick_tasks((name,))
    answered = []
    for (_, index, _, ask), reply in mine:
        if reply is None:
            break
        answered.append((index, read(bench.writer.tokenizer, ask, reply), reply.error))
    records = [Record(i, a.text, tuple((c.name, c.arguments) for c in a.calls), {}, error) for i, a, error in answered]
    records.sort(key=lambda record: record.index)
    num_failed = sum(bool(record.error) for record in records)
    cost = total(speed_of(answer) for _, answer, _ in answered)
    is_cut = len(answered) < len(mine)
    label = decoder_label(way.decoder)
    return Cell(
        name, task.domain, label, task.headlines, {}, len(records) - num_failed, num_failed, seconds, cost, is_cut,
        task.is_lower_better, tuple(records),
    )  # fmt: skip
