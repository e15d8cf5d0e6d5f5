"""The evaluations over a real engine with tiny random weights: answers of `verify` equal those of AR."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.core import DecoderName, DecoderParams
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.evals.report import Report
from quicksilver.evals.run import EvalSettings, run_evals
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate
from quicksilver.worker.async_engine import AsyncEngine
from tests.evals.build import HELD_OUT, write_pack, write_rows
from tests.support.fakes import tiny_tokenizer
from tests.support.tiny import TINY, drafting_model

CONFIG = replace(TINY, vocab_size=273, context_len=1536)
FILE = "".join(f"    value_{i} = compute({i})\n" for i in range(30))


def model() -> Transformer:
    return drafting_model(CONFIG)


def tiny_engine() -> AsyncEngine:
    engine = build_engine(model(), "tiny", EngineConfig(num_pages=400, max_rows=256))
    engine.constraints = ForcedPrefixes.of(tiny_tokenizer(), engine.info.vocab_size).constraint
    return AsyncEngine(engine)


async def _run(data: Path) -> Report:
    decoders = (DecoderParams(DecoderName.AR), DecoderParams(DecoderName.VERIFY, canvas_len=4))
    tasks = ("arc_easy", "wikitext2", "sanity", "fim_python")
    settings = EvalSettings(data, tasks, limit=2, decoders=decoders, concurrency=2)
    engine = tiny_engine()
    tokenizer = tiny_tokenizer()
    try:
        return await run_evals(engine, tokenizer, ChatTemplate.own(tokenizer), settings)
    finally:
        await engine.close()


async def test_tasks_run_over_an_engine_and_verify_equals_ar(tmp_path: Path) -> None:
    question = {"task": "arc_easy", "q": "Question: one?\nAnswer:", "c": ["yes", "no"], "g": 1}
    data = write_pack(tmp_path, [question, question, {"task": "wikitext2_test", "text": "some words " * 400}])
    write_rows(data / "train" / "code_python.jsonl.xz", [{"p": HELD_OUT, "f": "a.py", "t": FILE}])
    report = await _run(data)
    cells = {(cell.task, cell.decoder): cell for cell in report.cells}
    assert not any(cell.num_failed for cell in report.cells)
    assert cells["wikitext2", "likelihood"].metrics["tokens"] == 2 * 1023
    for task in ("sanity", "fim_python"):
        ar, verify = cells[task, "ar"], cells[task, "verify K=4"]
        assert [record.text for record in ar.records] == [record.text for record in verify.records]
        assert ar.speed.tokens == verify.speed.tokens > 0
        assert verify.speed.tokens_per_round is not None
        assert verify.speed.tokens_per_round >= 1.0
    assert (report.engine["model"], report.settings["limit"]) == ("tiny", 2)
