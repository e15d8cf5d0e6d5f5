"""RunProgress: one bar over the stages of a run on a terminal, with the time left of the current stage.

While a bar is shown, the lines of the journals go to `log/STAGE.log` in the run's folder and not to the screen. In a
pipe no bar is shown, and the lines are printed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quicksilver.training.journal import Journal

if TYPE_CHECKING:
    from rich.progress import Progress


class RunProgress:
    """Use as a context manager around the stages."""

    def __init__(self, stages: Sequence[str], *, is_shown: bool | None = None) -> None:
        self._stages = list(stages)
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._bar: Progress | None = None
        self._index = -1
        self._began = 0.0

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task("starting", total=len(self._stages))
            self._bar.start()
            Journal.listener = self
        return self

    def begin(self, stage: str) -> None:
        """The next stage starts."""
        self._index += 1
        self._began = time.monotonic()
        self._show(0.0, stage)

    def report(self, stage: str, scalars: Mapping[str, float]) -> None:
        """A journal's report; `eta_s` is the estimated time left of the stage."""
        left_s, spent_s = scalars.get("eta_s", 0.0), time.monotonic() - self._began
        share = spent_s / (spent_s + left_s) if left_s > 0 else 0.0
        loss = f", loss {scalars['loss']:.3f}" if "loss" in scalars else ""
        left = f", {int(left_s) // 60}:{int(left_s) % 60:02} left" if left_s > 0 else ""
        self._show(share, f"{stage}{loss}{left}")

    def _show(self, share: float, text: str) -> None:
        if self._bar is not None:
            done = min(max(self._index, 0) + share, len(self._stages))
            number = f"stage {self._index + 1} of {len(self._stages)}"
            self._bar.update(self._task, completed=done, description=f"{number}: {text}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            Journal.listener = None
            if error is None:
                self._bar.update(self._task, completed=len(self._stages), description="done")
            self._bar.stop()
