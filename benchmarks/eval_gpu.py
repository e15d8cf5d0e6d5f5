"""Evaluates a base and its adapters on a machine that has only torch, numpy, safetensors, tokenizers and gguf.

    python benchmarks/eval_gpu.py --base base.gguf --skill skill.safetensors --canvas canvas.safetensors \
        --data eval-data --tasks likelihood skills --limit 100 --seconds 20 --out results/evals.json
    python benchmarks/eval_gpu.py --pack ../data --out eval-data        # the small data folder for such a machine
    python benchmarks/eval_gpu.py --rescore results/evals.json --data ../data --out results/evals.json

Runs base + skill (+ canvas) under the decoders named, then the base alone under AR, and prints both side by side.
The engine runs in this process. On CUDA forwards are plain torch with the paged attention kernel (`--runner paged`:
little to compile), graphs (`graphs`: slow to start, then fastest, at most 64 items at a time) or torch alone
(`plain`); a runner that fails its first request gives way to the next. `auto` takes graphs where something is
generated: likelihoods are many rows in few forwards, for which no graph is worth its making.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import lzma
import shutil
import sys
import time
from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path

from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.rescore import read_reports, rescore
from quicksilver.backends.base import Work
from quicksilver.backends.batch import build_batch
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, FinishReason, Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, load_transformer
from quicksilver.evals.catalogue import GROUPS, pick_tasks
from quicksilver.evals.data import PACK, held_out_records, train_file
from quicksilver.evals.report import Cell, Report, write_reports
from quicksilver.evals.run import EvalSettings, run_evals
from quicksilver.evals.table import compare
from quicksilver.hub.resolve import ModelFiles
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.worker.async_engine import AsyncEngine

RUNNERS = ("graphs", "paged", "plain")
# Training files of which evaluations read the held-out packages, and files that they read whole.
BY_PACKAGE = ("code_python", "code_js_ts", "edits_python")
WHOLE = ("tools_sgd_dev", "tools_sgd_test")


class PagedRunner(TorchBackend):
    """The torch backend with the paged attention kernel for all sequences at once, instead of SDPA per sequence."""

    def _forward(self, works: Seq[Work]) -> Tensor:
        from tests.support.triton_attend import TritonAttend

        batch = build_batch(works, self.cache.page_size).to(self.device)
        x = self.model.embed(batch.token_ids, batch.mask_index if batch.has_canvas else None)
        attend = TritonAttend(batch.plan, self.cache)
        is_canvas = batch.plan.is_canvas if batch.has_canvas else None
        return self.model(x, batch.plan.positions, attend, is_canvas)[batch.proposing]


def copy_held_out(data: Path, target: Path) -> list[Path]:
    """Write a small data folder that contains only what evaluations read, for machines without the full data."""
    written = [target / PACK, *(train_file(target, name) for name in (*BY_PACKAGE, *WHOLE))]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(data / PACK, target / PACK)
    for name in WHOLE:
        shutil.copyfile(train_file(data, name), train_file(target, name))
    for name in BY_PACKAGE:
        with lzma.open(train_file(target, name), "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(record) + "\n" for record in held_out_records(data, name))
    return written


def main() -> None:
    options = parse()
    if options.pack:
        for path in copy_held_out(options.pack, options.out):
            print(f"{path.stat().st_size:9d}  {path}")
        return
    if options.rescore:
        reports = [rescore(report, options.data) for report in read_reports(options.rescore)]
    else:
        reports = asyncio.run(evaluate(options))
    write_reports(reports, options.out)
    print(compare(reports), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="GGUF file or safetensors folder")
    parser.add_argument("--skill", type=Path)
    parser.add_argument("--canvas", type=Path)
    parser.add_argument("--data", type=Path, help="folder with eval/ and train/")
    parser.add_argument("--tasks", nargs="+", default=["likelihood", "skills"])
    parser.add_argument("--limit", type=int, default=100, help="items a task; 0 takes each task's own number")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of a task under one decoder")
    parser.add_argument(
        "--decoders", nargs="+", default=["ar", "verify:16"], help="ar, verify:K, confidence:K:THRESHOLD"
    )
    parser.add_argument("--models", nargs="+", default=["skill", "base"], choices=["skill", "base"])
    parser.add_argument("--concurrency", type=int, default=128)
    parser.add_argument("--runner", choices=["auto", *RUNNERS], default="auto", help="how forwards run on CUDA")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pack", type=Path, metavar="DATA")
    parser.add_argument("--rescore", type=Path, metavar="REPORT")
    return parser.parse_args()


def read_decoder(text: str) -> DecoderParams:
    name, *numbers = text.split(":")
    canvas_len = int(numbers[0]) if numbers else 16
    threshold = float(numbers[1]) if len(numbers) > 1 else 0.9
    return DecoderParams(DecoderName(name), 1 if name == "ar" else canvas_len, threshold=threshold)


async def evaluate(options: argparse.Namespace) -> list[Report]:
    """Evaluate the requested models one after the other. Results are written after each task."""
    reports: list[Report] = []
    for name in options.models:
        is_base = name == "base"
        decoders = [read_decoder(text) for text in options.decoders]
        if is_base or options.canvas is None:
            decoders = [decoder for decoder in decoders if decoder.name is DecoderName.AR] or [read_decoder("ar")]
        adapters = (None, None) if is_base else (options.skill, options.canvas)
        checkpoint = ModelFiles(name, options.base, *adapters)
        done = list(reports)
        async for report in evaluate_one(checkpoint, tuple(decoders), options):
            reports = [*done, report]
            write_reports(reports, options.out)
    return reports


async def evaluate_one(
    checkpoint: ModelFiles, decoders: tuple[DecoderParams, ...], options: argparse.Namespace
) -> AsyncIterator[Report]:
    """The report so far, after every task."""
    started = time.monotonic()
    tokenizer = Tokenizer.for_model(checkpoint.weights, checkpoint.skill)
    engine = start_engine(checkpoint, tokenizer, options)
    template = ChatTemplate.for_tokenizer(tokenizer)
    print(f"{checkpoint.name}: loaded in {time.monotonic() - started:.1f} s", flush=True)

    def watch(label: str, done: int, count: int) -> None:
        if done in (1, count):
            print(f"{time.monotonic() - started:7.1f} s  {checkpoint.name} {label}: {done}/{count}", flush=True)

    cells: tuple[Cell, ...] = ()
    try:
        for task in pick_tasks(options.tasks):
            settings = EvalSettings(
                data=options.data,
                tasks=(task.name,),
                limit=options.limit,
                decoders=decoders,
                concurrency=options.concurrency,
                seconds=options.seconds,
                model=checkpoint.name,
            )
            report = await run_evals(engine, tokenizer, template, settings, watch)
            cells += report.cells
            yield replace(report, cells=cells)
    finally:
        await engine.close()


def start_engine(checkpoint: ModelFiles, tokenizer: Tokenizer, options: argparse.Namespace) -> AsyncEngine:
    """Start the engine with the requested backend, or the next one that works."""
    model = load_transformer(checkpoint, LoadConfig(device=options.device))
    engine = build_any(model, checkpoint.name, options)
    engine.constraints = ForcedPrefixes.of(tokenizer, engine.info.vocab_size).constraint
    return AsyncEngine(engine)


def build_any(model: Transformer, name: str, options: argparse.Namespace) -> Engine:
    if model.device.type != "cuda":
        config = EngineConfig(num_pages=1024, max_running=options.concurrency, cuda_graphs=False)
        return build_engine(model, name, config)
    for runner in RUNNERS[RUNNERS.index(pick_runner(options)) :]:
        try:
            engine = cuda_engine(model, name, runner, options.concurrency)
        except Exception as error:  # Any exception of a compiler on an unknown machine.
            print(f"{runner} forwards cannot be built here: {error}", flush=True)
            continue
        if answers(engine):
            print(f"{runner} forwards", flush=True)
            return engine
        print(f"{runner} forwards fail here", flush=True)
    raise SystemExit("no runner answers on this GPU")


def pick_runner(options: argparse.Namespace) -> str:
    if options.runner != "auto":
        return str(options.runner)
    likelihoods = {"likelihood", *GROUPS["likelihood"]}
    return "paged" if set(options.tasks) <= likelihoods else "graphs"


def cuda_engine(model: Transformer, name: str, runner: str, concurrency: int) -> Engine:
    """Few rows per forward for CUDA graphs; many for eager torch, whose launch overhead dominates."""
    is_graphs = runner == "graphs"
    config = EngineConfig(
        num_pages=32768,
        max_rows=1024 if is_graphs else 4096,
        max_running=min(concurrency, 64) if is_graphs else concurrency,
        context_len=4096,
        logit_rows=2048,
        cuda_graphs=is_graphs,
    )
    engine = build_engine(model, name, config)
    if runner == "paged":
        engine.backend = PagedRunner(model, engine.backend.cache, config.logit_rows)
    return engine


def answers(engine: Engine) -> bool:
    """Whether a first short request succeeds."""
    engine.add(Request("probe", (5, 6, 7), DecodeParams(max_new_tokens=2, decoder=read_decoder("ar"))))
    finish = None
    while engine.has_work:
        finish = next((e.finish for e in engine.step() if isinstance(e, Delta) and e.finish), finish)
    return finish is FinishReason.LENGTH or finish is FinishReason.STOP


if __name__ == "__main__":
    main()
