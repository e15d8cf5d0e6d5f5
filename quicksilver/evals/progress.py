"""A progress bar per task if `rich` is installed, and no output otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quicksilver.evals.run import Watch


@contextmanager
def shown_progress() -> Iterator[Watch]:
    """Provide a progress callback that draws while the context is open."""
    try:
        from rich.progress import Progress, TaskID
    except ImportError:
        yield lambda label, done, count: None
        return
    with Progress() as progress:
        bars: dict[str, TaskID] = {}

        def watch(label: str, done: int, count: int) -> None:
            if label not in bars:
                bars[label] = progress.add_task(label, total=count)
            progress.update(bars[label], completed=done)

        yield watch
