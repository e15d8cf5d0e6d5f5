"""TimeLeft: how long a fine-tuning job still takes, from the work of its stages and the pace so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from quicksilver.model.adapters import linear_shapes
from quicksilver.training.network import Network

# Assumed before the first step: floating-point operations per second of one CPU thread, and of a GPU.
RATE = {"cpu": 6e10, "cuda": 1e14}

# What is being done, and the seconds left.
Tell = Callable[[str, float], None]


class TimeLeft:
    """Work is counted in tokens of one forward. A backward counts as a forward, because the base is frozen."""

    def __init__(self, tell: Tell, work: Mapping[str, float], network: Network) -> None:
        """`work` by stage, in their order."""
        self._tell, self._work = tell, dict(work)
        config, device = network.config, network.device.type
        params = config.num_layers * sum(out * into for out, into in linear_shapes(config).values())
        self._pace = 2 * params / (RATE[device] * (torch.get_num_threads() if device == "cpu" else 1))

    def add(self, work: Mapping[str, float]) -> None:
        """Stages that not every job has, when they begin."""
        self._work |= work

    def at_step(self, stage: str, prefix: str, step: int, num_steps: int, scalars: Mapping[str, float]) -> None:
        """`scalars` are those of the loop, whose seconds include earlier runs of a continued job."""
        share = step / num_steps
        self._pace = scalars["seconds"] / (share * self._work[stage])
        self.at(stage, f"{prefix}step {step} of {num_steps}, loss {scalars['loss']:.3f}", share)

    def at(self, stage: str, text: str, share: float = 0.0) -> None:
        """A share of the stage is done, and all stages before it."""
        names = list(self._work)
        later = sum(self._work[name] for name in names[names.index(stage) + 1 :])
        self._tell(text, self._pace * ((1 - share) * self._work[stage] + later))
