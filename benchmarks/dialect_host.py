"""Host time per step of block diffusion on CUDA graphs, without a GPU: the forwards do nothing, proposals are random.

    TRITON_INTERPRET=1 python -m benchmarks.dialect_host [--streams 128] [--decoder static|threshold|edit] [--profile]

The network has the shapes of `gpu_dialects --tiny`. Everything but the network runs as on a GPU: planning, the rows of
the batch, the fixed buffers of graphs, the split of the proposals, decisions, commits and events. Needs Triton, whose
kernels are imported and never run. Milliseconds, the median over steps.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.dialect_networks import config_of, random_network
from benchmarks.gpu_dialects import host_phases
from benchmarks.phase_clock import PhaseClock
from quicksilver.backends.cuda.buffers import GraphLimits, HeadBuffers, bucket_of
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.core import CommitRule, DecodeParams, DecoderName, DecoderParams, EngineInfo, Request
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache

DECODERS = {
    "static": DecoderParams(DecoderName.CONFIDENCE, rule=CommitRule.STATIC, steps=2),
    "threshold": DecoderParams(DecoderName.CONFIDENCE, threshold=0.6),
    "edit": DecoderParams(DecoderName.EDIT, threshold=0.6, edit_threshold=0.9),
}


class IdleExecutor(GraphExecutor):
    """Fills all buffers, and replays nothing. The head's results are random."""

    supports_adapters = False

    def graph(self, key: tuple[object, ...], work: Callable[[], None]) -> Callable[[], None]:
        if key[0] != "head":
            return lambda: None
        head, rng = self.head_buffers(int(str(key[1]))), np.random.default_rng(len(self._replays))
        return lambda: _fill_randomly(head, rng, self.model.config.vocab_size)


def _fill_randomly(head: HeadBuffers, rng: np.random.Generator, vocab_size: int) -> None:
    results = head.workspace.results.numpy()
    count = results.shape[1]
    results[0] = rng.integers(0, vocab_size - 1, count)
    results[1:3] = rng.random((2, count), dtype=np.float32).view(np.int32)
    results[3] = 1


@dataclass
class Measurement:
    streams: int
    num_tokens: int
    prompt_len: int
    decoder: DecoderParams

    def engine(self) -> Engine:
        config = config_of("sdar-4b", is_tiny=True)
        model = random_network(config, "cpu", torch.float16)
        context_len = self.prompt_len + self.num_tokens + 32
        num_pages = self.streams * -(-context_len // 16) + 8
        rows = bucket_of(2 * config.dialect.block_len * self.streams)
        cache = PagedCache.allocate(config, num_pages, 16, torch.device("cpu"), torch.float16, 0)
        executor = IdleExecutor(model, cache, 512, GraphLimits(rows, self.streams, context_len))
        info = EngineInfo("tiny", "sdar", config.vocab_size, context_len, 64, "cpu", "float16", num_pages, 16, 0, "")
        settings = EngineConfig(num_pages=num_pages, max_rows=rows, max_running=self.streams, context_len=context_len)
        return Engine(executor, info, settings, dialect=config.dialect)

    def run(self, engine: Engine) -> list[dict[str, float]]:
        """Milliseconds by phase of each step in which all requests decode."""
        params = DecodeParams(max_new_tokens=self.num_tokens, decoder=self.decoder)
        for i in range(self.streams):
            prompt = tuple(1 + (7 * i + 3 * at) % 97 for at in range(self.prompt_len))
            engine.add(Request(str(i), prompt, params))
        clock, steps = PhaseClock(), list[dict[str, float]]()
        with host_phases(clock, engine):
            while engine.has_work:
                before = Counter(clock.seconds)
                engine.step()
                running = engine.scheduler.running
                if len(running) == self.streams and not any(one.is_prefilling for one in running):
                    steps.append({name: 1e3 * (value - before[name]) for name, value in clock.seconds.items()})
        return steps


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--prompt-len", type=int, default=32)
    parser.add_argument("--decoder", choices=tuple(DECODERS), default="static")
    parser.add_argument("--profile", action="store_true", help="the functions that take most time")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    measurement = Measurement(options.streams, options.tokens, options.prompt_len, DECODERS[options.decoder])
    engine = measurement.engine()
    measurement.run(engine)
    with cProfile.Profile() if options.profile else nullcontext() as profile:
        steps = measurement.run(engine)
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    names = sorted({name for step in steps for name in step})
    phases = {name: round(statistics.median(step.get(name, 0.0) for step in steps), 3) for name in names}
    total = statistics.median(sum(step.values()) for step in steps)
    report = {"decoder": options.decoder, "streams": options.streams, "steps": len(steps)}
    report |= {"phase_ms": phases, "total_ms": round(total, 3)}
    print(json.dumps(report))
    return report


if __name__ == "__main__":
    main()
