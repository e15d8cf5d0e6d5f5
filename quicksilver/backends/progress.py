"""Progress of the start of a backend: what is compiled or captured, and how many of how many.

It is logged to `quicksilver.start`, which the engine worker writes to its standard error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import TypeVar

log = logging.getLogger("quicksilver.start")

# Seconds between two log lines of one loop.
PAUSE_S = 2.0
Item = TypeVar("Item")


def counted(what: str, items: Seq[Item], clock: Callable[[], float] = time.monotonic) -> Iterator[Item]:
    """The items; logs how many are done every `PAUSE_S` seconds, and at the end how long all took."""
    started = last = clock()
    for num_done, item in enumerate(items):
        now = clock()
        if now - last >= PAUSE_S:
            log.info("%s: %d of %d", what, num_done, len(items))
            last = now
        yield item
    log.info("%s: %d of %d in %.1f s", what, len(items), len(items), clock() - started)
