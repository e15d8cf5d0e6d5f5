"""A progress bar over the answers of a batch, on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


class BatchProgress:
    """Shows finished answers, tokens per second and the time left. Without `is_shown` it does nothing."""

    def __init__(self, num_answers: int, *, is_shown: bool) -> None:
        self._num_answers = num_answers
        self._is_shown = is_shown
        self._bar: Progress | None = None
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("answers"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task("", total=self._num_answers)
            self._bar.start()
        return self

    def update(self, num_finished: int, num_tokens: int) -> None:
        if self._bar is not None:
            rate = num_tokens / max(time.perf_counter() - self._started, 1e-9)
            self._bar.update(self._task, advance=num_finished, description=f"{rate:.0f} tokens/s")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
