"""Tokens per second with many adapters on a GPU: the same requests without an adapter, with one, and spread over many.

    python -m benchmarks.gpu_adapters --out DIR [--shape 1.5B | --model coder-1.5b] [--adapters 32] [--rank 16]

`--shape` takes random weights at the shape of a real model, which have the same speed; `--model` reads real ones.
`slots` decodes ahead of the host; `forwards` runs forward by forward, as requests with a grammar do. The runs
alternate, and the median of each counts. `forward` times the graph alone. The last row compares requests with different
adapters in one batch with each request alone, token for token, with batch-invariant products. Compare ratios, not
seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from benchmarks.gpu_forward import graph_ms
from benchmarks.gpu_setup import DEVICE, PAGE_SIZE, SHAPES, random_model, synthetic_batch, write_report
from quicksilver.adapters import AdapterRef
from quicksilver.backends.cuda.adapter_table import page_bytes
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, EngineInfo, Request
from quicksilver.engine.adapter_cache import AdapterCache
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.lowrank import Adapter, LowRank, linear_shapes
from quicksilver.model.row_adapters import AdapterRows
from quicksilver.model.transformer import Transformer

CONTEXT_LEN = 1024
PARAMS = DecoderParams(DecoderName.AR, canvas_len=1)


def random_adapter(model: Transformer, seed: int, rank: int) -> Adapter:
    """Changes nearly every answer, as its terms are a tenth of the linears' outputs."""
    generator = torch.Generator(DEVICE).manual_seed(seed)

    def draw(rows: int, columns: int, std: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator, device=DEVICE).mul_(std).to(model.dtype).cpu()

    shapes = linear_shapes(model.config).items()
    layers: list[dict[str, torch.nn.Module]] = [
        {name: LowRank(draw(rank, k, k**-0.5), draw(n, rank, 0.02)) for name, (n, k) in shapes}
        for _ in range(model.config.num_layers)
    ]
    return Adapter(layers).requires_grad_(False)


def make_engine(
    model: Transformer, adapters: dict[str, Adapter], options: argparse.Namespace, mode: MatmulMode
) -> Engine:
    """An engine with memory for all of `adapters`."""
    config, streams = model.config, options.streams
    num_pages = len(adapters) * -(-options.rank // 16)
    limits = GraphLimits(
        512, max(streams, 8), CONTEXT_LEN, options.weights, mode, 4096 if mode is MatmulMode.FASTEST else 512,
        num_pages * page_bytes(config, model.dtype),
    )  # fmt: skip
    kv_pages = streams * CONTEXT_LEN // PAGE_SIZE
    cache = PagedCache.allocate(config, kv_pages, PAGE_SIZE, DEVICE, model.dtype, 64)
    backend = CudaBackend(GraphExecutor(model, cache, EngineConfig().logit_rows, limits))
    info = EngineInfo(
        model="random", family=config.family, vocab_size=config.vocab_size, context_len=CONTEXT_LEN, max_canvas_len=32,
        device=DEVICE, dtype="bfloat16", num_pages=kv_pages, page_size=PAGE_SIZE, weight_bytes=0, fingerprint="",
        supports_adapters=True,
    )  # fmt: skip
    settings = EngineConfig(
        max_rows=512, max_running=streams, context_len=CONTEXT_LEN, spare_pages=8, prompt_rows=limits.prompt_rows
    )
    store = AdapterCache(lambda ref: backend.convert_adapter(adapters[ref.id]), 0, backend.adapter_store)
    return Engine(backend, info, settings, adapters=store)


def with_slots(engine: Engine, num_slots: int) -> Engine:
    """The same backend with slots."""
    backend = engine.backend
    assert isinstance(backend, CudaBackend)
    backend.prepare_slots(num_slots)
    return Engine(backend, engine.info, engine.config, adapters=engine.adapters)


def requests_of(choices: list[AdapterRef | None], count: int, num_tokens: int) -> list[Request]:
    params = DecodeParams(num_tokens, decoder=PARAMS)
    prompts = [tuple(100 + (7 * i + j) % 1000 for j in range(24)) for i in range(count)]
    return [Request(str(i), p, params, adapter=choices[i % len(choices)]) for i, p in enumerate(prompts)]


def run(engine: Engine, requests: list[Request]) -> tuple[dict[str, list[int]], float]:
    """The answers, and tokens per second; no prefix is cached."""
    engine.pool.clear_cache()
    found: dict[str, list[int]] = {request.id: [] for request in requests}
    torch.cuda.synchronize()
    started = time.perf_counter()
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Delta):
                assert event.error is None, event.error
                found[event.request_id] += event.token_ids
    return found, sum(map(len, found.values())) / (time.perf_counter() - started)


def measure(
    engine: Engine, groups: dict[int, list[AdapterRef | None]], name: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    rates: dict[int, list[float]] = {count: [] for count in groups}
    for choices in groups.values():
        run(engine, requests_of(choices, options.streams, 8))
    for _ in range(options.repeats):
        for count, choices in groups.items():
            rates[count].append(run(engine, requests_of(choices, options.streams, options.tokens))[1])
    medians = {count: statistics.median(values) for count, values in rates.items()}
    return [
        {"what": name, "adapters": count, "tok_per_s": rate, "of_one": rate / medians[1], "of_none": rate / medians[0]}
        for count, rate in medians.items()
    ]


def time_forwards(
    engine: Engine, groups: dict[int, list[AdapterRef | None]], rows: int, rows_each: int
) -> list[dict[str, Any]]:
    executor = engine.backend.executor  # type: ignore[attr-defined]
    found = []
    for count, choices in groups.items():
        batch = synthetic_batch(rows // rows_each, rows_each, 256)
        choice = torch.arange(rows) // rows_each % len(choices)
        leases = [engine.adapters.lease(ref) if ref is not None else None for ref in choices]
        placed = [(lease.adapter, choice == i) for i, lease in enumerate(leases) if lease is not None]
        batch = replace(batch, row_adapters=tuple(AdapterRows(one, own.nonzero()[:, 0]) for one, own in placed))
        found.append({"what": f"forward {rows} rows", "adapters": count, "ms": graph_ms(executor, batch)})
    return found


def compare(
    model: Transformer, adapters: dict[str, Adapter], refs: list[AdapterRef], options: argparse.Namespace
) -> dict[str, Any]:
    """Whether requests with different adapters have the same tokens in one batch and alone."""
    engine = make_engine(model, adapters, options, MatmulMode.BATCH_INVARIANT)
    requests = requests_of([None, *refs], options.streams, options.checked_tokens)
    together = run(engine, requests)[0]
    alone = {one.id: run(engine, [one])[0][one.id] for one in requests}
    plain = run(engine, [replace(one, adapter=None) for one in requests])[0]
    return {
        "what": "mixed = alone", "adapters": len(refs), "requests": len(requests),
        "equal": sum(together[key] == alone[key] for key in alone),
        "changed_by_the_adapter": sum(together[key] != plain[key] for key in alone),
    }  # fmt: skip


def load(options: argparse.Namespace) -> Transformer:
    if not options.model:
        return random_model(SHAPES[options.shape])
    from quicksilver.engine.load import LoadConfig, load_transformer
    from quicksilver.hub.resolve import resolve

    return load_transformer(resolve(options.model), LoadConfig(device=DEVICE)).eval()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True)
    parser.add_argument("--shape", default="1.5B", choices=SHAPES)
    parser.add_argument("--model", default="", help="real weights by name instead of random ones")
    parser.add_argument("--weights", default="bfloat16", help="bfloat16, fp8 or int4")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--checked-tokens", type=int, default=32, help="of the comparison; 0 leaves it out")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    model = load(options)
    adapters = {str(i): random_adapter(model, i, options.rank) for i in range(options.adapters)}
    refs = [AdapterRef(key, key) for key in adapters]
    engine = make_engine(model, adapters, options, MatmulMode.FASTEST)
    started = time.perf_counter()
    for ref in refs:
        engine.adapters.info(ref)
    load_s = (time.perf_counter() - started) / len(refs)
    groups: dict[int, list[AdapterRef | None]] = {0: [None], 1: [refs[0]], len(refs): [*refs]}
    rows = [{"what": "load", "adapters": len(engine.adapters.list()), "s_each": load_s}]
    for count, rows_each in ((16, 1), (64, 1), (512, 16)):
        rows += time_forwards(engine, groups, count, rows_each)
    rows += measure(engine, groups, "forwards", options)
    rows += measure(with_slots(engine, options.streams), groups, "slots", options)
    if options.checked_tokens:
        rows.append(compare(model, adapters, refs, options))
    settings = {key: value for key, value in vars(options).items() if key != "out"}
    write_report(options.out, "gpu_adapters", settings, rows)


if __name__ == "__main__":
    main()
