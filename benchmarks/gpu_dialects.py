"""Speed of diffusion checkpoints at their real shapes: random weights, a fixed number of steps, one engine.

    python -m benchmarks.gpu_dialects [--cases gemma,llada2,sdar-30b-a3b,sdar-8b] [--weights fp8] [--out DIR]
    python -m benchmarks.gpu_dialects --tiny --device cpu

Speed does not depend on the values of weights, except through the experts that rows choose: with random weights these
are nearly uniform, which is the worst case. The number of steps is fixed, so no figure depends on what a network has
learned. The roofline counts the bytes of the matrices that a forward reads, with the experts that its rows chose, over
the copy bandwidth of the same run. `graph_ms` is the time of one replayed forward of a block's rows with its head on
the device, without the host; its rows are different tokens. `--tiny` has the same code with tiny shapes, to check the
script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.dialect_networks import config_of, random_network
from benchmarks.phase_clock import PhaseClock, detach
from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.moe import SparseFeedForward
from quicksilver.model.transformer import Transformer

_GEMMA = DecoderParams(DecoderName.CANVAS, canvas_len=256, steps=16, stop_entropy=0.0)


@dataclass(frozen=True)
class Case:
    """A model, concurrent streams, tokens per answer, and a decoder with a fixed number of forwards per token."""

    model: str
    streams: int
    num_tokens: int
    decoder: DecoderParams


def _static(steps: int) -> DecoderParams:
    return DecoderParams(DecoderName.CONFIDENCE, rule=CommitRule.STATIC, steps=steps)


CASES = {
    "gemma": Case("diffusion-gemma", 1, 1024, _GEMMA),
    "gemma-8": Case("diffusion-gemma", 8, 1024, _GEMMA),
    "llada2": Case("llada2-mini", 1, 512, _static(6)),
    "sdar-30b-a3b": Case("sdar-30b-a3b", 1, 256, _static(2)),
    "sdar-8b": Case("sdar-8b", 1, 256, _static(2)),
    "sdar-4b-128": Case("sdar-4b", 128, 128, _static(2)),
}


class ExpertCount:
    """Distinct experts that the rows of forwards chose, per layer and forward. Forwards of more than `most_rows` rows,
    which are prompts, are not counted."""

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self.num_touched = 0
        self.num_calls = 0

    def add(self, chosen: Tensor) -> None:
        if len(chosen) <= self.most_rows:
            self.num_touched += len(chosen[chosen >= 0].unique())
            self.num_calls += 1

    @property
    def mean(self) -> float:
        return self.num_touched / max(self.num_calls, 1)

    @contextmanager
    def counting(self, *, has_kernels: bool) -> Iterator[None]:
        """`has_kernels`: forwards run kernel by kernel instead of as captured graphs, so that each can be looked at."""
        choose = SparseFeedForward.choose

        def counted(layer: SparseFeedForward, x: Tensor) -> tuple[Tensor, Tensor]:
            chosen, weights = choose(layer, x)
            self.add(chosen)
            return chosen, weights

        SparseFeedForward.choose = counted  # type: ignore[method-assign]
        try:
            with self._counting_kernels() if has_kernels else nullcontext():
                yield
        finally:
            SparseFeedForward.choose = choose  # type: ignore[method-assign]

    @contextmanager
    def _counting_kernels(self) -> Iterator[None]:
        from quicksilver.backends.cuda.graphs import GraphExecutor
        from quicksilver.backends.cuda.kernels import network

        run_sparse, replay = network.run_sparse, GraphExecutor.replay

        def counted(x: Tensor, norm: Any, weights: Any, used: Any, workspace: Any, squares: Any = None) -> None:
            run_sparse(x, norm, weights, used, workspace, squares)
            self.add(workspace.router.chosen[:, : weights.router.moe.top_k])

        network.run_sparse = counted
        GraphExecutor.replay = lambda executor, key, work: work()  # type: ignore[method-assign]
        try:
            yield
        finally:
            network.run_sparse, GraphExecutor.replay = run_sparse, replay  # type: ignore[method-assign]


def bytes_per_forward(model: Transformer, touched: float, weights: str = "bfloat16") -> float:
    """Matrices that a forward reads; `touched` is the mean number of experts per sparse layer. In fp8 those of a
    16-bit network have half the size, except the table of soft embeddings."""
    if weights == "fp8":
        return bytes_per_forward(model, touched) / 2 + model.tokens.weight.nbytes * model.config.tied_head
    total = 0.0
    for name, parameter in model.named_parameters():
        if name == "tokens.weight" and not model.config.tied_head:
            continue  # a few rows of the table
        share = touched / len(parameter) if parameter.dim() == 3 else 1.0
        total += parameter.nbytes * share
    return total


def kernel_bytes(weights: Any, touched: float) -> float:
    """The same for `NetworkWeights`, whose matrices may be quantised."""
    total = float(weights.head.num_bytes)
    for layer in weights.layers:
        total += sum(matrix.num_bytes for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down))
        if layer.sparse is not None:
            experts = layer.sparse.routed
            shared = 0 if layer.sparse.shared is None else layer.sparse.shared.num_bytes
            total += experts.num_bytes * touched / len(experts.down) + shared + layer.sparse.router.weight.nbytes
    return total


def replayed_forward(executor: Any, num_rows: int, bandwidth: float) -> dict[str, float]:
    """Time of a forward of `num_rows` rows with its head as graph replays, and its share of the roofline."""
    from quicksilver.backends.cuda.buffers import bucket_of
    from quicksilver.backends.cuda.graphs import GraphVariant

    count = bucket_of(num_rows)
    times = executor.forward_ms()
    if (count, False) not in times:
        return {}
    counts = ExpertCount(count)
    with counts.counting(has_kernels=True):
        executor.run_network(count, False, GraphVariant())
    floor_ms = 1e3 * kernel_bytes(executor.network.weights, counts.mean) / bandwidth
    graph_ms = times[count, False]
    share = 100 * floor_ms / graph_ms
    return {"graph_rows": count, "graph_ms": graph_ms, "graph_experts": counts.mean, "graph_roofline_pct": share}


def copy_bandwidth(device: str) -> float:
    """Bytes per second, read and written, of a copy of 1 GiB (32 MiB on a CPU)."""
    source = torch.empty(1 << (30 if device == "cuda" else 25), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * len(source) * 10 / seconds(lambda: [target.copy_(source) for _ in range(10)], device)


def seconds(run: Callable[[], object], device: str) -> float:
    run()
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def host_phases(clock: PhaseClock, engine: Engine) -> Iterator[None]:
    """Counts the phases of the engine's steps; of forwards on graphs also the rows of the batch (`batch`), the fixed
    buffers (`fill`) and the waits for the device."""
    timed = [] if (graphs := _graph_modules()) is None else _graph_places(*graphs)
    originals = [getattr(owner, name) for owner, name, _ in timed]
    for (owner, name, phase), original in zip(timed, originals, strict=True):
        setattr(owner, name, clock.timed(phase, original))
    clock.attach(engine)
    try:
        yield
    finally:
        detach(engine)
        for (owner, name, _), original in zip(timed, originals, strict=True):
            setattr(owner, name, original)


def _graph_modules() -> tuple[Any, Any] | None:
    """None without Triton."""
    try:
        from quicksilver.backends.cuda import buffers, graphs
    except ImportError:
        return None
    return graphs, buffers


def _graph_places(graphs: Any, buffers: Any) -> list[tuple[Any, str, str]]:
    return [
        (graphs, "build_batch", "batch"), (buffers.RowBuffers, "fill", "fill"), (buffers.HeadBuffers, "fill", "fill"),
        (buffers.StreamMarker, "wait", "wait"),
    ]  # fmt: skip


def answer_all(engine: Engine, case: Case, prompt_len: int, decode_s: list[float] | None = None) -> tuple[int, int]:
    """Runs one request per stream to its end. Returns the number of tokens and of engine steps. `decode_s` receives the
    seconds of the steps in which all streams decode."""
    params = DecodeParams(max_new_tokens=case.num_tokens, temperature=1.0, decoder=case.decoder)
    for i in range(case.streams):
        prompt = tuple(1 + (7 * i + 3 * at) % 97 for at in range(prompt_len))
        engine.add(Request(str(i), prompt, replace(params, seed=i)))
    before = engine.stats()
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        running = engine.scheduler.running
        if decode_s is not None and len(running) == case.streams and not any(one.is_prefilling for one in running):
            decode_s.append(time.perf_counter() - start)
    after = engine.stats()
    assert after.failures == 0, "a request failed"
    return after.generated_tokens - before.generated_tokens, after.steps - before.steps


def timed(engine: Engine, case: Case, prompt_len: int, device: str) -> tuple[int, int, float, dict[str, float]]:
    """Tokens, forwards, seconds, and milliseconds of each phase per forward. `decode` is the mean of the whole steps in
    which all streams decode."""
    engine.pool.clear_cache()
    _wait(device)
    clock, decode_s = PhaseClock(), list[float]()
    with host_phases(clock, engine):
        start = time.perf_counter()
        num_tokens, num_forwards = answer_all(engine, case, prompt_len, decode_s)
        _wait(device)
        elapsed = time.perf_counter() - start
    phases = {name: round(1e3 * spent / num_forwards, 3) for name, spent in clock.seconds.items()}
    phases["decode"] = round(1e3 * sum(decode_s) / max(len(decode_s), 1), 3)
    return num_tokens, num_forwards, elapsed, phases


@contextmanager
def rounds_off(backend: Any) -> Iterator[None]:
    """Every forward waits for the host, also where the backend has rounds that run ahead of it."""
    blocks = getattr(backend, "blocks", None)
    if blocks is not None:
        backend.blocks = None
    try:
        yield
    finally:
        if blocks is not None:
            backend.blocks = blocks


def without_rounds(engine: Engine, case: Case, prompt_len: int, device: str) -> dict[str, Any]:
    """The same where every forward waits for the host, if the backend has rounds that run ahead of it."""
    backend: Any = engine.backend
    if getattr(backend, "blocks", None) is None:
        return {}
    with rounds_off(backend):
        num_tokens, num_forwards, elapsed, phases = timed(engine, case, prompt_len, device)
    found = {"tokens_per_s": num_tokens / elapsed, "ms_per_forward": 1e3 * elapsed / num_forwards}
    return {"without_rounds": found | {"phase_ms_per_step": phases}, "round_ms": round_times(backend.blocks)}


def round_times(blocks: Any) -> dict[str, float]:
    """Device time of the largest rounds without sequences, by their rows."""
    from quicksilver.backends.cuda.capture import time_replay
    from quicksilver.backends.cuda.logit_bias import SamplingOptions

    largest = [graph for (size, _), graph in blocks.graphs.items() if size == max(blocks.sizes)]
    return {str(one.rows.host.shape[1]): time_replay(one.prepare(SamplingOptions(is_sampled=True))) for one in largest}


def parts_of(engine: Engine, case: Case) -> dict[str, float]:
    """Device time of the parts of a step of random canvases."""
    if type(engine.backend).__name__ != "CanvasExecutor":
        return {}
    from benchmarks.canvas_parts import time_kernels, time_parts

    rows = case.streams * case.decoder.canvas_len
    for kernel, (ms, count) in list(time_kernels(engine.backend, rows).items())[:24]:  # type: ignore[arg-type]
        print(f"{ms:9.4f} ms {count:5d} x  {kernel}", flush=True)
    return time_parts(engine.backend, rows)  # type: ignore[arg-type]


def measure(
    name: str, device: str, bandwidth: float, prompt_len: int, *, is_tiny: bool, weights: str = "bfloat16"
) -> dict[str, Any]:
    case, config = CASES[name], config_of(CASES[name].model, is_tiny=is_tiny)
    if is_tiny:
        canvas_len = min(case.decoder.canvas_len, 16)
        case = replace(
            case, streams=min(case.streams, 3), num_tokens=40, decoder=replace(case.decoder, canvas_len=canvas_len)
        )
    model = random_network(config, device, torch.bfloat16 if device == "cuda" else torch.float32)
    model.weight_format = None if weights == "bfloat16" else weights
    # Canvases of hundreds of rows choose all experts; their kernels are not counted.
    num_experts = float(config.moe.num_experts if config.moe is not None else 0)
    all_bytes = bytes_per_forward(model, num_experts, weights)
    context_len = prompt_len + case.num_tokens + 2 * max(case.decoder.canvas_len, config.dialect.block_len, 16)
    # With pages for the rounds that run ahead of the host.
    num_pages = case.streams * (8 - (-context_len // 16)) + 128
    own_rows = case.streams * (config.dialect.block_len or case.decoder.canvas_len)
    rows = max(512, 2 * own_rows)
    settings = EngineConfig(num_pages=num_pages, max_rows=rows, max_running=case.streams, context_len=context_len)
    engine = build_engine(model, name, settings)
    executor = getattr(engine.backend, "executor", None)
    counts = ExpertCount(2 * own_rows)
    with counts.counting(has_kernels=executor is not None), rounds_off(engine.backend):
        answer_all(engine, replace(case, num_tokens=min(case.num_tokens, 128)), prompt_len)
    answer_all(engine, replace(case, num_tokens=min(case.num_tokens, 32)), prompt_len)  # captures the graphs
    num_tokens, num_forwards, elapsed, phases = timed(engine, case, prompt_len, device)
    touched = counts.mean if counts.num_calls else num_experts
    if executor is not None:
        num_bytes = kernel_bytes(executor.network.weights, touched)
    else:
        num_bytes = bytes_per_forward(model, touched, weights) if counts.num_calls else all_bytes
    floor_ms = 1e3 * num_bytes / bandwidth
    return {
        "case": name, "tokens": num_tokens, "forwards": num_forwards, "seconds": elapsed,
        "tokens_per_s": num_tokens / elapsed, "ms_per_forward": 1e3 * elapsed / num_forwards, "floor_ms": floor_ms,
        "roofline_pct": 100 * floor_ms * num_forwards / (1e3 * elapsed), "experts_per_layer": touched,
        "phase_ms_per_step": phases, **without_rounds(engine, case, prompt_len, device),
        "backend": type(engine.backend).__name__, "decoder": asdict(case.decoder), "streams": case.streams,
        "weights": weights, **parts_of(engine, case),
        **(replayed_forward(executor, own_rows, bandwidth) if executor is not None else {}),
    }  # fmt: skip


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument(
        "--weights", default="bfloat16", choices=("bfloat16", "fp8", "int4"), help="of models that run in graphs"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny shapes, to check the script")
    parser.add_argument("--out", type=Path, help="folder of a dated JSON file")
    parser.add_argument("--round-rows", type=int, default=0, help="rows of the largest block round; 0: the default")
    options = parser.parse_args(arguments)
    if options.round_rows:
        from quicksilver.backends.cuda import block_rounds

        block_rounds.MAX_ROUND_ROWS = options.round_rows
    bandwidth = copy_bandwidth(options.device)
    print(f"copy bandwidth {bandwidth / 1e12:.2f} TB/s", flush=True)
    found = []
    for name in options.cases.split(","):
        args = (name, options.device, bandwidth, options.prompt_len)
        found.append(measure(*args, is_tiny=options.tiny, weights=options.weights))
        print(json.dumps(found[-1]), flush=True)
        if options.device == "cuda":
            torch.cuda.empty_cache()
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
        report = {"device": device, "torch": torch.__version__, "bandwidth": bandwidth, "cases": found}
        suffix = "" if options.weights == "bf16" else f"-{options.weights}"
        name = f"dialects{suffix}-{datetime.now(UTC):%Y-%m-%d}.json"
        (options.out / name).write_text(json.dumps(report, indent=1) + "\n")
    return found


if __name__ == "__main__":
    main()
