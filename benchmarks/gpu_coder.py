"""A base model and its canvas adapter on real text: speed, streams, infilling, equality with AR, and evaluation tasks.

    python -m benchmarks.gpu_coder --model coder-1.5b --data eval-data --out results
        [--base base.gguf --canvas canvas.safetensors] [--skill skill.safetensors]
        [--parts device speed streams fim rounds equality tasks] [--seconds 330] [--limit speed=40] [--scale 1]
        [--domains chat fim edit tools] [--tasks humaneval] [--matmul batch_invariant]

Needs torch, Triton, numpy, safetensors, tokenizers and gguf. Loads the weights once, in fp32. The served bf16 engine
runs on a rounded copy, `equality` on the fp32 weights in eager torch. `--seconds` limits all parts together, from the
start of the process; every part has a limit of its own and reports what it has. `--data` is a folder with eval/ and
train/, or one of `eval_gpu.py --pack`. A small `--scale` runs every part on a few short questions, to fill Triton's
cache. The answers of `tasks` are scored afterwards, without a GPU: `eval_gpu.py --rescore OUT/coder-evals.json`.
"""

from __future__ import annotations

import argparse
import copy
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import coder_parts
from benchmarks.coder_parts import TASKS, Bench
from benchmarks.coder_prompts import DOMAINS, MORE_DOMAINS
from benchmarks.coder_report import Book
from benchmarks.eval_gpu import PagedRunner
from quicksilver.backends.base import Outcome, Work
from quicksilver.constrain.runtime.forced_prefix import ForcedPrefixes
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import MAX_TREE_ROWS, EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import pick_device
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.hub.resolve import resolve
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter, merge_skill
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

STARTED = time.perf_counter()
# Seconds of each part, in the order of execution: the most important first, the longest last.
LIMITS = {"device": 5.0, "speed": 50.0, "streams": 45.0, "fim": 12.0, "rounds": 60.0, "equality": 30.0, "tasks": 1e9}
PARTS: dict[str, Callable[[Bench, float], None]] = {name: getattr(coder_parts, name) for name in LIMITS}
NUM_PAGES = 16384
SETTINGS = ("parts", "seconds", "limit", "scale", "domains", "tasks", "matmul", "weights")


def main() -> None:
    options = parse()
    book = Book(options.out, facts(options))
    exact = load(options, torch.float32)
    book.say("weights loaded")
    tokenizer = Tokenizer.for_model(options.base, options.skill)
    writer = PromptBuilder(tokenizer, ChatTemplate.for_tokenizer(tokenizer), 4096)
    run_parts(exact, writer, book, options)
    book.say("done")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name of the catalogue; or --base and --canvas")
    parser.add_argument("--base", type=Path)
    parser.add_argument("--skill", type=Path, help="a skill adapter to merge first")
    parser.add_argument("--canvas", type=Path)
    parser.add_argument("--domains", nargs="+", choices=[*DOMAINS, *MORE_DOMAINS], default=list(DOMAINS))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--limit", nargs="+", default=[], metavar="PART=SECONDS")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--matmul", choices=("fastest", "batch_invariant"), default="fastest")
    parser.add_argument("--weights", choices=("bfloat16", "fp8", "int4"), default="bfloat16")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.model:
        files = resolve(options.model)
        options.base, options.skill, options.canvas = files.weights, files.skill, files.canvas
    if options.base is None or options.canvas is None:
        parser.error("name a model with a canvas adapter, or --base and --canvas")
    return options


def facts(options: argparse.Namespace) -> dict[str, object]:
    return {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "commit": options.commit,
        "base": options.base.name,
        "canvas": {"file": options.canvas.name, "bytes": options.canvas.stat().st_size},
        "settings": {name: str(getattr(options, name)) for name in SETTINGS},
    }


def load(options: argparse.Namespace, dtype: torch.dtype) -> Transformer:
    model = load_model(options.base, dtype=dtype, device=pick_device(options.device))
    if options.skill is not None:
        merge_skill(model, load_adapter(options.skill))
    adapter = load_adapter(options.canvas)
    assert isinstance(adapter, CanvasAdapter)
    attach_canvas(model, adapter)
    return model.requires_grad_(False)


def rounded(model: Transformer) -> Transformer:
    """The same weights in bf16, as after loading in bf16; computed tables stay in fp32."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return other


def run_parts(exact: Transformer, writer: PromptBuilder, book: Book, options: argparse.Namespace) -> None:
    """Run the selected parts in order. A failure is reported and does not stop the others."""
    limits = LIMITS | {name: float(value) for name, value in (word.split("=") for word in options.limit)}
    served = _Served(exact, book, options) if set(options.parts) != {"equality"} else None
    for name, part in PARTS.items():
        left = options.seconds - (time.perf_counter() - STARTED)
        if name not in options.parts or left < 3:
            continue
        book.say(f"{name}, at most {min(left, limits[name]):.0f} s")
        try:
            engine = exact_engine(exact) if name == "equality" or served is None else served.engine
            engine.constraints = ForcedPrefixes.of(writer.tokenizer, engine.info.vocab_size).constraint
            part(
                Bench(engine, writer, options.data, book, options.scale, tuple(options.domains), tuple(options.tasks)),
                min(left, limits[name]),
            )
        except Exception:  # the other parts still run
            book.say(f"{name} failed\n{traceback.format_exc()}")


class _Served:
    """The engine as served; without graphs if they cannot be captured."""

    def __init__(self, exact: Transformer, book: Book, options: argparse.Namespace) -> None:
        model = rounded(exact)
        model.weight_format = options.weights
        try:
            self.engine = build_engine(model, "coder", EngineConfig(num_pages=NUM_PAGES, matmul=options.matmul))
            prepare_lone_rounds(self.engine)
        except Exception:
            book.say(f"no graphs here\n{traceback.format_exc()}")
            gc.collect()
            config = EngineConfig(num_pages=NUM_PAGES, cuda_graphs=False, max_rows=1024, logit_rows=1024)
            self.engine = build_engine(model, "coder", config)
            self.engine.backend = PagedRunner(model, self.engine.backend.cache, config.logit_rows)
        _report_failures(self.engine, book)
        gc.collect()
        gc.freeze()
        book.say(f"engine built: {type(self.engine.backend).__name__}, {self.engine.scheduler.config}")
        book.facts["engine"] = str(self.engine.scheduler.config)


def _report_failures(engine: Engine, book: Book) -> None:
    """Report the first few failed forwards in full; the engine reports only the type of an error."""
    run, num_reported = engine.backend.run, 0

    def reporting(works: Sequence[Work]) -> list[Outcome | None]:
        nonlocal num_reported
        try:
            return run(works)
        except Exception:
            num_reported += 1
            if num_reported <= 3:
                book.say(f"a forward failed\n{traceback.format_exc()}")
            raise

    engine.backend.run = reporting  # type: ignore[method-assign]


def prepare_lone_rounds(engine: Engine) -> None:
    """Capture further rounds for one request: without a tree and with each tree size."""
    if not torch.cuda.is_available():
        return
    from quicksilver.backends.cuda.backend import CudaBackend
    from quicksilver.backends.cuda.inflight import RoundShape

    if isinstance(engine.backend, CudaBackend):
        shapes = [RoundShape(1, 8), *(RoundShape(1, 16, tree_rows=rows) for rows in (0, 16, MAX_TREE_ROWS))]
        engine.backend.prepare_rounds([shape for shape in shapes if shape not in engine.backend.rounds])


def exact_engine(exact: Transformer) -> Engine:
    config = EngineConfig(num_pages=4096, max_rows=1024, logit_rows=1024, cuda_graphs=False)
    return build_engine(exact, "coder in fp32", config)


if __name__ == "__main__":
    main()
