"""Throughput with many adapters: the same requests without an adapter, with one, and spread over many.

    python benchmarks/adapters.py [--model nano] [--adapters 32] [--streams 8] [--requests 64] [--rank 16] [--tokens 48]

Adapters are random and small, so that answers stay as easy to draft. `ar` decodes one token a forward,
so that the figures do not depend on acceptance; `--decoder verify` includes the drafts. The runs alternate, and the
median of each counts. On a busy machine use `--clock cpu` with OMP_NUM_THREADS=1: tokens per second of processor time.
Also: seconds to load an adapter and its bytes. Writes dated JSON into benchmarks/results/.
Compare ratios, not seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from quicksilver.adapters import AdapterRef
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.engine.load import LoadConfig, for_serving, load_engine
from quicksilver.hub.adapter_files import find_adapter
from quicksilver.hub.resolve import resolve
from quicksilver.model.adapters import LINEARS, Adapter, linear_shapes, save_adapter
from quicksilver.model.config import ModelConfig
from quicksilver.model.files.checkpoint import open_source
from quicksilver.model.lowrank import LowRank

RESULTS = Path(__file__).parent / "results"
# Small enough that most tokens stay those of the base.
STD = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--decoder", default="ar", choices=("ar", "verify"))
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    args = parser.parse_args()
    files, load = resolve(args.model), LoadConfig(device="cpu")
    config = EngineConfig(max_running=args.streams, adapter_bytes=16 << 30, context_len=2048)
    engine = load_engine(files, load, for_serving(config, load))
    with tempfile.TemporaryDirectory() as folder:
        network = open_source(files.weights).config
        refs = [random_adapter(network, seed, args.rank, Path(folder)) for seed in range(args.adapters)]
        result = measure(engine, refs, args)
    result |= {"args": vars(args), "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    result["taken"] = datetime.now(UTC).isoformat(timespec="seconds")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"adapters-{datetime.now(UTC):%Y-%m-%d}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def random_adapter(config: ModelConfig, seed: int, rank: int, folder: Path) -> AdapterRef:
    generator = torch.Generator().manual_seed(seed)
    shapes, path = linear_shapes(config), folder / f"{seed}.safetensors"
    layers: list[dict[str, torch.nn.Module]] = [
        {
            name: LowRank(
                torch.randn(rank, shapes[name][1], generator=generator) * STD,
                torch.randn(shapes[name][0], rank, generator=generator) * STD,
            )
            for name in LINEARS
        }
        for _ in range(config.num_layers)
    ]
    save_adapter(path, Adapter(layers), {}, bits=16)
    return find_adapter(path)


def measure(engine: Engine, refs: list[AdapterRef], args: argparse.Namespace) -> dict[str, object]:
    started = time.perf_counter()
    num_bytes = [engine.adapters.info(ref).num_bytes for ref in refs]
    load_s = (time.perf_counter() - started) / len(refs)
    groups: dict[str, list[AdapterRef | None]] = {
        "none": [None],
        "one": [refs[0]],
        f"{len(refs)}": [*refs],
    }
    run(engine, [None], args, args.streams)  # compiles and warms up
    rates: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(args.repeats):
        for name, choices in groups.items():
            rates[name].append(run(engine, choices, args, args.requests))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    many = medians[str(len(refs))]
    return {
        "tokens_per_s": {name: round(value, 1) for name, value in medians.items()},
        "all_rates": {name: [round(value, 1) for value in values] for name, values in rates.items()},
        "many_over_one": round(many / medians["one"], 3),
        "one_over_none": round(medians["one"] / medians["none"], 3),
        "adapter_bytes": num_bytes[0],
        "load_s": round(load_s, 3),
        "resident": len(engine.adapters.list()),
    }


def run(engine: Engine, choices: list[AdapterRef | None], args: argparse.Namespace, num_requests: int) -> float:
    """Tokens per second over `num_requests` requests, whose adapters take turns; no prefix is cached."""
    engine.pool.clear_cache()
    is_ar = args.decoder == "ar"
    decoder = DecoderParams(DecoderName.AR, canvas_len=1) if is_ar else DecoderParams(DecoderName.VERIFY)
    params = DecodeParams(args.tokens, decoder=decoder)
    for i in range(num_requests):
        prompt = tuple(100 + (7 * i + j) % 1000 for j in range(24))
        engine.add(Request(str(i), prompt, params, adapter=choices[i % len(choices)]))
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    num_tokens, started = 0, clock()
    while engine.has_work:
        num_tokens += sum(len(event.token_ids) for event in engine.step() if isinstance(event, Delta))
    return num_tokens / (clock() - started)


if __name__ == "__main__":
    main()
