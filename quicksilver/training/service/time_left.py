"""TimeLeft: how long a fine-tuning job still takes, from the work of its stages and the pace so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from quicksilver.model.adapters import linear_shapes
from quicksilver.training.attention import DocumentAttention
from quicksilver.training.network import Network

# Floating-point operations per second of a GPU, assumed before the first step.
GPU_RATE = 1e14
# Forwards that are timed on a CPU: their tokens, how many there are at most, and the seconds after which no further one
# begins. One forward is too short to show how busy the machine is.
PROBE_TOKENS, MAX_PROBES, PROBE_S = 256, 8, 1.0

# What is being done, and the seconds left.
Tell = Callable[[str, float], None]


class TimeLeft:
    """Work is counted in tokens of one forward. Before the first step the pace is that of a timed forward, which also
    shows how busy the machine is."""

    def __init__(self, tell: Tell, work: Mapping[str, float], network: Network, compiles: bool | None = None) -> None:
        """`work` by stage, in their order. `compiles`: whether the first step of a stage takes longer than the others,
        by default on a GPU."""
        self._tell, self._work = tell, dict(work)
        self._pace = probed_pace(network)
        self._compiles = network.device.type != "cpu" if compiles is None else compiles
        # Number and seconds of the first step of each stage.
        self._first: dict[str, tuple[int, float]] = {}

    def add(self, work: Mapping[str, float]) -> None:
        """Stages that not every job has, when they begin."""
        self._work |= work

    def at_step(self, stage: str, prefix: str, step: int, num_steps: int, scalars: Mapping[str, float]) -> None:
        """`scalars` are those of the loop, whose seconds include earlier runs of a continued job."""
        share, seconds = step / num_steps, scalars["seconds"]
        first, begun = self._first.setdefault(stage, (step, seconds)) if self._compiles else (0, 0.0)
        if step > first:
            self._pace = (seconds - begun) / ((step - first) / num_steps * self._work[stage])
        self.at(stage, f"{prefix}step {step} of {num_steps}, loss {scalars['loss']:.3f}", share)

    def at(self, stage: str, text: str, share: float = 0.0) -> None:
        """A share of the stage is done, and all stages before it."""
        names = list(self._work)
        later = sum(self._work[name] for name in names[names.index(stage) + 1 :])
        self._tell(text, self._pace * ((1 - share) * self._work[stage] + later))


@torch.no_grad()
def probed_pace(network: Network, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per token of a forward. The first one warms up and is not timed. On a GPU it would be compiled, so the
    pace follows from the number of parameters."""
    config, device = network.config, network.device
    if device.type != "cpu":
        return 2 * config.num_layers * sum(out * into for out, into in linear_shapes(config).values()) / GPU_RATE
    token_ids = torch.zeros(1, PROBE_TOKENS, dtype=torch.long)
    positions, attention = torch.arange(PROBE_TOKENS)[None], DocumentAttention(torch.ones_like(token_ids))
    network.forward(network.embed(token_ids), positions, attention)
    begun, count, seconds = clock(), 0, 0.0
    while count < MAX_PROBES and seconds < PROBE_S:
        network.forward(network.embed(token_ids), positions, attention)
        count, seconds = count + 1, clock() - begun
    return seconds / (count * PROBE_TOKENS)
