"""Host time of constrained requests under load, by phase, with forwards that cost nothing.

    TRITON_INTERPRET=1 python -m benchmarks.constrain_host --model coder-1.5b --streams 32 [--decoder ar] [--profile 40]

Needs Triton (the environment of `make kernels`), no GPU and no weights: the CUDA backend fills its buffers and writes
its masks, but no kernel runs. A script takes the place of the model. Each request writes the answer that its prompt of
`load.py --schema` asks for, and `--acceptance` of its drafted tokens are right. Times are processor time of this
thread, without the script.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import torch
from torch import nn

from benchmarks.load_prompts import _CITIES, _NAMES
from benchmarks.load_requests import RequestSource
from benchmarks.phase_clock import PhaseClock, detach
from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.round_cost import RoundCost
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.core import Delta
from quicksilver.engine.build import build_engine
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.hub.resolve import resolve
from quicksilver.model.adapters import attach_canvas
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from quicksilver.text.tokenizer import Tokenizer
from tests.support.canvas_adapters import new_canvas

WIDTHS = {"coder-1.5b": 151_936, "nano": 49_152}
# Milliseconds of a forward of coder-1.5b on an H200, by rows; canvas rows cost a fifth more.
FORWARD_MS = {16: 1.0, 32: 1.3, 64: 1.9, 128: 2.4, 256: 3.6, 512: 6.6}
COST = RoundCost({(rows, uses): ms * (1.2 if uses else 1) for rows, ms in FORWARD_MS.items() for uses in (False, True)})


def answer_of(index: int) -> bytes:
    """The answer to prompt `index` of kind json, in the layout of the grammar."""
    name, city = _NAMES[index % 24 % len(_NAMES)], _CITIES[index % 24 % len(_CITIES)]
    if index % 2 == 0:
        facts: Any = {"name": name, "age": 20 + index % 24, "city": city, "languages": ["Spanish", "English"]}
    else:
        counts = (("lamps", 1 + index % 24 % 3), ("chairs", 2 + index % 24 % 5))
        items = [{"product": product, "count": count} for product, count in counts]
        facts = {"order": f"A-{1000 + 7 * (index % 24)}", "items": items, "is_paid": True}
    return json.dumps(facts, separators=(",", ":")).encode()


@dataclass
class Script:
    """What the model of this benchmark proposes."""

    tokenizer: Tokenizer
    acceptance: float
    answers: dict[str, bytes] = field(default_factory=dict)
    _encoded: dict[bytes, list[int]] = field(default_factory=dict)

    def propose(self, work: Work) -> list[int]:
        """One token for each proposing row."""
        sequence, tail = work.sequence, work.tail
        if tail is None or not work.num_proposals:
            return []
        rest = self._rest(self.answers[sequence.id], sequence.generated)
        found: list[int] = []
        known = [*tail.known][: work.num_proposals - 1]
        for i in range(len(known) + 1):
            follows = self._encode(rest) if rest is not None else []
            found.append(follows[0] if follows else self.tokenizer.eos_ids[0])
            if i < len(known):
                rest = None if rest is None else self._rest(rest, known[i : i + 1])
        follows = self._encode(rest)[1:] if rest is not None else []
        for j in range(work.num_proposals - len(found)):
            draw = crc32(f"{len(rest or b'')} {j}".encode() + self.answers[sequence.id])
            is_right = draw % 1000 < 1000 * self.acceptance
            found.append(follows[j] if is_right and j < len(follows) else 11)
        return found

    def _rest(self, text: bytes, tokens: Seq[int]) -> bytes | None:
        written = b"".join(self.tokenizer.token_bytes(token) for token in tokens)
        return text[len(written) :] if text.startswith(written) else None

    def _encode(self, text: bytes) -> list[int]:
        if text not in self._encoded:
            self._encoded[text] = list(self.tokenizer.encode(text.decode()))
        return self._encoded[text]


class HostOnly(GraphExecutor):
    """Fills buffers and writes masks, runs no kernel, and returns the tokens of a script."""

    script: Script
    clock: PhaseClock

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        propose = self.clock.timed("script", lambda: [token for work in works for token in self.script.propose(work)])
        self._tokens = propose()
        return super().run(works)

    def graph(self, key: tuple[object, ...], work: Callable[[], None]) -> Callable[[], None]:
        return self.clock.timed("script", self._answer) if key[0] == "head" else lambda: None

    def _answer(self) -> None:
        tokens = torch.tensor(self._tokens, dtype=torch.int32)
        for head in self._heads.values():
            results = head.workspace.results
            if results.shape[1] >= len(tokens):
                results[0, : len(tokens)] = tokens
                results[3] = 1


def host_engine(options: argparse.Namespace, script: Script, grammars: Grammars) -> Engine:
    torch.manual_seed(0)
    width = WIDTHS[options.model]
    config = ModelConfig("llama", 1, 32, 64, 2, 1, 32, width, 4096, tied_head=True)
    model = Transformer(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter) if parameter.dim() > 1 else None
    attach_canvas(model, new_canvas(config, rank=4, max_canvas_len=32, seed=0))
    # As on a GPU: prompts in large forwards, whose time does not depend on the cached context.
    settings = EngineConfig(
        num_pages=4096, cuda_graphs=False, max_running=options.streams, prompt_rows=8192, doubling_context=1 << 30
    )
    engine = build_engine(model, "host", settings)
    limits = GraphLimits(512, options.streams, 4096, prompt_rows=8192)
    backend = HostOnly(model, engine.backend.cache, 64, limits)  # type: ignore[attr-defined]
    hidden = torch.zeros(8192, config.dim)
    backend.network.run = lambda inputs, workspace, is_gated: hidden[: len(inputs.token_ids)]
    backend._bitmasks.send = lambda: None  # a copy that a GPU makes by itself
    backend.script, backend.clock = script, PhaseClock(now=time.thread_time)
    engine.backend, engine.constraints = backend, grammars.constraint  # type: ignore[assignment]
    engine.scheduler.canvas_length.round_cost = COST
    return engine


def level(engine: Engine, source: RequestSource, options: argparse.Namespace) -> dict[str, Any]:
    """One closed loop of constrained requests."""
    backend: Any = engine.backend
    clock = backend.clock = PhaseClock(now=time.thread_time)
    waiting = source.mixed(options.requests, ("json",), options.max_tokens, has_schema=True)
    backend._bitmasks.write = clock.timed("masks", type(backend._bitmasks).write.__get__(backend._bitmasks))
    backend.script.answers = {request.id: answer_of(i) for i, request in enumerate(waiting)}
    texts: dict[str, bytes] = {request.id: b"" for request in waiting}
    before, num_steps, running = engine.stats(), 0, 0
    waiting.reverse()
    clock.attach(engine)
    while waiting or running:
        while waiting and running < options.streams:
            engine.add(waiting.pop())
            running += 1
        num_steps += 1
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            texts[event.request_id] += b"".join(source.tokenizer.token_bytes(token) for token in event.token_ids)
            running -= event.finish is not None
    detach(engine)
    assert texts == backend.script.answers, "an answer differs from its script"
    return report(before, engine.stats(), num_steps, clock, options.streams)


def report(before: Any, after: Any, num_steps: int, clock: PhaseClock, streams: int) -> dict[str, Any]:
    tokens, rows = after.generated_tokens - before.generated_tokens, after.rows - before.rows
    spent = {name: clock.seconds[name] for name in ("plan", "masks", "forward", "commit", "rest")}
    total = sum(spent.values())
    return {
        "steps": num_steps,
        "tokens": tokens,
        "forced": after.forced_tokens - before.forced_tokens,
        "rows_per_step": round(rows / num_steps, 1),
        "tokens_per_step": round(tokens / num_steps, 1),
        "us_per_token": round(1e6 * total / tokens, 1),
        "ms_per_step": round(1e3 * total / num_steps, 2),
        "us_per_request_and_step": round(1e6 * total / num_steps / streams, 1),
        "phase_ms_per_step": {name: round(1e3 * seconds / num_steps, 2) for name, seconds in spent.items()},
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--model", default="coder-1.5b", choices=WIDTHS)
    words.add_argument("--streams", type=int, default=32)
    words.add_argument("--requests", type=int, default=96)
    words.add_argument("--max-tokens", type=int, default=256)
    words.add_argument("--decoder", default="verify")
    words.add_argument("--acceptance", type=float, default=0.8)
    words.add_argument("--repeats", type=int, default=3)
    words.add_argument("--profile", type=int, default=0, help="print this many functions")
    options = words.parse_args()
    source = RequestSource.of_model(resolve(options.model), options)
    grammars = Grammars(source.tokenizer.to_json(), source.tokenizer.eos_ids, WIDTHS[options.model])
    engine = host_engine(options, Script(source.tokenizer, options.acceptance), grammars)
    for _ in range(options.repeats):
        print(json.dumps(level(engine, source, options)), flush=True)
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(level, engine, source, options)
        pstats.Stats(profile).sort_stats("tottime").print_stats(options.profile)


if __name__ == "__main__":
    main()
