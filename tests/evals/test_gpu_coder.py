"""`benchmarks/gpu_coder.py` on a CPU with tiny random weights: every part runs and its rows are consistent."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import coder_parts, gpu_coder
from benchmarks.coder_answers import AR, SERVED, answer_all, two_forwards
from benchmarks.coder_parts import Bench
from benchmarks.coder_prompts import DOMAINS, mixed_asks
from benchmarks.coder_report import Book
from benchmarks.rescore import read_reports, rescore
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate
from tests.evals.build import HELD_OUT, write_pack, write_rows
from tests.support.fakes import tiny_tokenizer
from tests.support.tiny import TINY, drafting_model

CONFIG = replace(TINY, family="qwen2", qkv_bias=True, vocab_size=273, context_len=4096)
CODE = "".join(f"    value_{i} = compute({i})\n" for i in range(30))
PROGRAM = {"prompt": "def one():\n", "entry_point": "one", "test": "def check(f):\n    assert f() == 1"}
HOLE = {**PROGRAM, "suffix": "\n", "canonical_solution": "    return 1\n"}
PACK: list[dict[str, Any]] = [
    {"task": "humaneval", **PROGRAM},
    {"task": "mbpp", "text": "Write one.", "test_list": ["assert one() == 1"], "test_setup_code": ""},
    {"task": "gsm8k_test", "question": "What is 1 + 1?", "answer": "#### 2"},
    {"task": "json_schema_holdout", "schema": {"type": "object"}},
    {"task": "humaneval_infill_single", **HOLE},
    {"task": "humaneval_infill_randomlight", **HOLE},
]
DIALOGUE = {
    "tools": [{"name": "find", "description": "finds", "parameters": {"type": "object", "properties": {}}}],
    "messages": [
        {"role": "user", "content": "Find it."},
        {"role": "assistant", "tool_calls": [{"name": "find", "arguments": {}}]},
    ],
}
BEFORE = "def f(a, b):\n    total = a\n    total = total + b\n    print(total)\n    return total"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_pack(tmp_path_factory.mktemp("data"), PACK)
    write_rows(folder / "train" / "code_python.jsonl.xz", [{"p": HELD_OUT, "f": "a.py", "t": CODE}])
    write_rows(folder / "train" / "tools_sgd_dev.jsonl.xz", [DIALOGUE])
    edit = {"p": HELD_OUT, "f": "a.py", "q": "f", "to": "2", "a": BEFORE, "b": BEFORE.replace("print", "log")}
    write_rows(folder / "train" / "edits_python.jsonl.xz", [edit])
    return folder


@pytest.fixture(scope="module")
def model() -> Transformer:
    return drafting_model(CONFIG)


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_coder, "NUM_PAGES", 2048)
    monkeypatch.setattr(coder_parts, "STREAMS", (1, 3))


def writer() -> PromptBuilder:
    tokenizer = tiny_tokenizer()
    return PromptBuilder(tokenizer, ChatTemplate.own(tokenizer), 4096)


def bench(model: Transformer, data: Path, out: Path) -> Bench:
    return Bench(gpu_coder.exact_engine(model), writer(), data, Book(out, {}), scale=0.02)


def test_every_part_leaves_rows_and_answers_that_can_be_scored(model: Transformer, data: Path, tmp_path: Path) -> None:
    parts = list(gpu_coder.PARTS)
    endless = [f"{part}=1e6" for part in parts]
    settings = {"limit": endless, "tasks": list(coder_parts.TASKS), "matmul": "fastest", "weights": "bfloat16"}
    options = argparse.Namespace(domains=list(DOMAINS), parts=parts, seconds=1e6, scale=0.02, data=data, **settings)
    book = Book(tmp_path, {})
    gpu_coder.run_parts(model, writer(), book, options)
    (path,) = tmp_path.glob("gpu_coder-*.json")
    sections = json.loads(path.read_text())["sections"]
    assert list(sections) == [
        "speed",
        "averages",
        "streams",
        "fim",
        "rounds",
        "equality",
        "tasks",
    ]  # A CPU engine measures no forward times.
    ways = [*(way.name for way in coder_parts.LONE_WAYS), SERVED.name]
    assert [(row["domain"], row["way"]) for row in sections["speed"]] == [(d, way) for d in DOMAINS for way in ways]
    assert all(row["tokens"] > 0 and row["decode_tok_per_s"] > 0 for row in sections["speed"])
    assert [row["streams"] for row in sections["streams"]] == [1, 1, 3, 3]
    assert all(row["same"] == row["compared"] == row["prompts"] for row in sections["equality"])
    (report,) = read_reports(tmp_path / "coder-evals.json")
    assert {(cell.task, cell.decoder) for cell in report.cells} == {
        (task, decoder) for task in coder_parts.TASKS for decoder in ("ar", "verify K=16")
    }
    assert all("pass" in cell.metrics for cell in rescore(report, data).cells if cell.task == "humaneval")


def test_a_way_is_undone_and_many_streams_answer_as_one(model: Transformer, data: Path, tmp_path: Path) -> None:
    here = bench(model, data, tmp_path)
    asks = mixed_asks(data, here.writer, 4, 12)
    settings = here.engine.scheduler.config
    one = answer_all(here.engine, asks, AR, 1, 60.0)
    crowd = answer_all(here.engine, asks, two_forwards(8), 4, 60.0)
    assert [r.token_ids for r in one.whole] == [r.token_ids for r in crowd.whole]
    assert len(one.whole) == 4
    assert here.engine.scheduler.config == settings


def test_time_that_runs_out_leaves_the_engine_empty(model: Transformer, data: Path, tmp_path: Path) -> None:
    here = bench(model, data, tmp_path)
    found = answer_all(here.engine, mixed_asks(data, here.writer, 4, 2800), SERVED, 2, 0.0)
    assert found.replies == [None] * 4
    assert not here.engine.has_work
    assert here.engine.stats().running == 0


def test_figures_become_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.coder_plot import draw_all, newest_sections

    book = Book(tmp_path, {"hardware": "made up", "settings": {"weights": "bfloat16"}})
    book.add("speed", {"domain": "chat", "way": "ar", "decode_tok_per_s": 600.0})
    book.add("rounds", {"domain": "chat", "canvas_len": 16, "tokens_per_round": 4.0})
    for streams in (1, 8):
        book.add("streams", {"streams": streams, "way": "ar", "tok_per_s": 600.0 * streams})
    later = {"hardware": "made up", "settings": {"weights": "int4"}, "sections": {"speed": []}}
    (tmp_path / "gpu_coder-later.json").write_text(json.dumps(later))
    assert newest_sections(tmp_path)[0]["speed"], "pictures are of bf16"
    pictures = draw_all(tmp_path, tmp_path / "images")
    assert [path.name for path in pictures] == ["coder-speed.png", "coder-streams.png", "coder-rounds.png"]
    assert all(path.stat().st_size > 1000 for path in pictures)
