"""The training loop: AdamW over a few tensors.

A task provides parameters and, per step, a loss whose gradient is already on them. The loop handles clipping, the
schedule, averaging, checkpoints, ranks and time. With a step budget on a CPU, a resumed run is bit-exact.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from quicksilver.errors import QuicksilverError
from quicksilver.training.checkpoint import load_state, save_state
from quicksilver.training.journal import Journal
from quicksilver.training.recipe import Optim
from quicksilver.training.schedule import cosine_decay, linear_decay

CHECKPOINT = "checkpoint.safetensors"
# Steps for compilation and warm-up before the clock of a time budget starts.
CLOCK_STARTS_AT = 3


class TrainingDiverged(QuicksilverError):
    """The loss is not finite. Lower the learning rate or check the data."""

    code = "training_diverged"


@dataclass(frozen=True, slots=True)
class StepReport:
    """Result of one step. Tensors stay on the device until they are reported."""

    loss: Tensor
    # Rows computed, for the throughput figure.
    num_rows: int
    scalars: Mapping[str, Tensor] = field(default_factory=dict)


class Task(Protocol):
    """A training task. `step` must depend only on its number and the parameters."""

    parameters: dict[str, Tensor]

    def step(self, number: int) -> StepReport: ...

    def sample(self) -> str:
        """A short text that shows the current model."""


class Loop:
    """Runs one task to its budget. `folder` holds the checkpoint that `run` resumes from."""

    def __init__(
        self,
        task: Task,
        optim: Optim,
        folder: Path,
        journal: Journal,
        after_step: Callable[[Loop], None] = lambda loop: None,
    ) -> None:
        """`after_step` may save the state, and may raise to stop the run."""
        self.task, self.optim, self.journal, self._after_step = task, optim, journal, after_step
        self._path = folder / CHECKPOINT
        tensors = list(task.parameters.values())
        self._is_fused = tensors[0].is_cuda
        betas = (optim.beta1, optim.beta2)
        self._adamw = torch.optim.AdamW(
            tensors, lr=optim.lr, betas=betas, weight_decay=optim.weight_decay, fused=self._is_fused
        )
        self._average = {name: t.detach().clone() for name, t in task.parameters.items()} if optim.ema_decay else {}
        self.step_number, self._elapsed = 0, 0.0

    @property
    def result(self) -> dict[str, Tensor]:
        """The averaged parameters if an average is kept, else the last ones."""
        return self._average or {name: t.detach() for name, t in self.task.parameters.items()}

    def run(self) -> dict[str, Tensor]:
        self._resume()
        begun, reported, rows = time.monotonic() - self._elapsed, time.monotonic(), 0
        clock_from = begun
        while not self._is_over(time.monotonic() - begun):
            if self.step_number == CLOCK_STARTS_AT:
                clock_from = time.monotonic()
            self._elapsed = time.monotonic() - begun
            progress = self._progress(self._elapsed, clock_from - begun)
            report = self._train_step(progress)
            rows += report.num_rows * world_size()
            if self._is_due(self.optim.log_every) or self.step_number <= CLOCK_STARTS_AT:
                now = time.monotonic()
                self._elapsed = now - begun
                self._report(report, rows / max(now - reported, 1e-9), progress)
                reported, rows = time.monotonic(), 0
            self._keep()
            self._after_step(self)
        self._elapsed = time.monotonic() - begun
        self.save()
        return self.result

    def _train_step(self, progress: float) -> StepReport:
        lr = self.lr_at(progress)
        for group in self._adamw.param_groups:
            group["lr"] = lr
        report = self.task.step(self.step_number * world_size() + rank())
        gradients = [t.grad for t in self.task.parameters.values() if t.grad is not None]
        share_gradients(gradients)
        norm = clip_gradients(gradients, self.optim.clip)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.step_number += 1
        if self._average:
            self._update_average()
        return StepReport(report.loss, report.num_rows, {**report.scalars, "grad_norm": norm})

    def lr_at(self, progress: float) -> float:
        """Linear warm-up over `warmup_steps`, then the decay of the schedule over the budget."""
        warm = min(1.0, (self.step_number + 1) / max(self.optim.warmup_steps, 1))
        decay = linear_decay if self.optim.schedule == "linear" else cosine_decay
        return self.optim.lr * warm * decay(progress)

    def _progress(self, elapsed: float, warmup_s: float) -> float:
        by_steps = self.step_number / self.optim.max_steps if self.optim.max_steps else 0.0
        span = self.optim.max_seconds - warmup_s
        has_clock = self.optim.max_seconds and self.step_number >= CLOCK_STARTS_AT
        return max(by_steps, (elapsed - warmup_s) / max(span, 1e-9) if has_clock else 0.0)

    def _is_over(self, elapsed: float) -> bool:
        out_of_steps = bool(self.optim.max_steps) and self.step_number >= self.optim.max_steps
        out_of_time = bool(self.optim.max_seconds) and elapsed >= self.optim.max_seconds
        return agreed(out_of_steps or out_of_time, next(iter(self.task.parameters.values())).device)

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.step_number % every == 0

    def _report(self, report: StepReport, rate: float, progress: float) -> None:
        loss = float(report.loss)
        if loss != loss:
            raise TrainingDiverged(f"loss is NaN at step {self.step_number}: lower lr ({self.optim.lr:g}) and resume")
        scalars = {"loss": loss, **{name: float(value) for name, value in report.scalars.items()}}
        scalars |= {
            "lr": self.lr_at(progress),
            "rows_per_s": rate,
            "seconds": self._elapsed,
            "eta_s": self._seconds_left(),
        }
        if rank() == 0:
            self.journal.report(self.step_number, scalars)

    def _seconds_left(self) -> float:
        """Estimated time until the first of the two limits, steps and seconds, ends the stage."""
        optim, done = self.optim, max(self.step_number, 1)
        by_steps = self._elapsed / done * (optim.max_steps - self.step_number) if optim.max_steps else math.inf
        by_clock = optim.max_seconds - self._elapsed if optim.max_seconds else math.inf
        left = max(min(by_steps, by_clock), 0.0)
        return left if math.isfinite(left) else 0.0

    def _keep(self) -> None:
        if self._is_due(self.optim.checkpoint_every):
            self.save()
        if self._is_due(self.optim.sample_every) and rank() == 0:
            text = self.task.sample()
            self.journal.print_line(text)
            self.journal.note({"step": self.step_number, "sample": text})

    def _update_average(self) -> None:
        # The average uses a smaller decay at first, because otherwise it would retain its zero initialisation.
        decay = min(self.optim.ema_decay, (1 + self.step_number) / (10 + self.step_number))
        for name, tensor in self.task.parameters.items():
            self._average[name].lerp_(tensor.detach(), 1 - decay)

    def save(self) -> None:
        if rank() == 0:
            facts = {"step": self.step_number, "elapsed_s": self._elapsed}
            save_state(self._path, self.task.parameters, self._adamw, self._average, facts)

    def _resume(self) -> None:
        if self._path.exists():
            facts = load_state(self._path, self.task.parameters, self._adamw, self._average)
            self.step_number, self._elapsed = int(facts["step"]), float(facts["elapsed_s"])
            self.journal.print_line(f"resumed at step {self.step_number}")


def clip_gradients(gradients: list[Tensor], max_norm: float) -> Tensor:
    """Scale gradients to `max_norm` in place without a device synchronisation. A non-finite norm zeroes the step."""
    norm = torch.nn.utils.get_total_norm(gradients)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0) if max_norm else torch.ones_like(norm)
    scale = torch.where(torch.isfinite(norm), scale, torch.zeros_like(scale))
    for gradient in gradients:
        gradient.mul_(scale).nan_to_num_(0.0, 0.0, 0.0)
    return norm


def world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def share_gradients(gradients: list[Tensor]) -> None:
    """Average gradients over ranks through one flat buffer."""
    if world_size() == 1:
        return
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= world_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def agreed(is_over: bool, device: torch.device) -> bool:
    """Broadcast the decision of rank 0, whose clock is authoritative."""
    if world_size() == 1:
        return is_over
    flag = torch.tensor([int(is_over)], device=device)
    dist.broadcast(flag, 0)
    return bool(flag.item())
