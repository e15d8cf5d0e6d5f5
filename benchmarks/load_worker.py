"""The engine worker with its time by phase in a file, for `load.py --socket` and `--server`.

    python -m benchmarks.load_worker --phases FILE --socket PATH --config JSON

`emit` is the engine's thread passing events to the event loop. `socket` is CPU time of the event loop: it joins the
events of a step and encodes them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.load_engine import device_waits
from benchmarks.phase_clock import PhaseClock, SharedSeconds
from quicksilver.worker import program, protocol
from quicksilver.worker.async_engine import AsyncEngine
from quicksilver.worker.server import Connection


def measure_phases(path: Path) -> PhaseClock:
    """Times the engine of this process, from the start of its thread. Returns the clock of that thread."""
    seconds = SharedSeconds(path)
    engine_clock, loop_clock = PhaseClock(seconds), PhaseClock(seconds, time.thread_time)
    start = AsyncEngine.__init__

    def start_timed(self: AsyncEngine, engine: Any, *args: Any, **options: Any) -> None:
        engine_clock.attach(engine)
        start(self, engine, *args, **options)

    AsyncEngine.__init__ = start_timed  # type: ignore[method-assign]
    AsyncEngine._deliver = engine_clock.timed("emit", AsyncEngine._deliver)  # type: ignore[method-assign]
    Connection.take = loop_clock.timed("socket", Connection.take)  # type: ignore[method-assign]
    protocol.pack = loop_clock.timed("socket", protocol.pack)
    return engine_clock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", type=Path, required=True)
    options, rest = parser.parse_known_args()
    with device_waits(measure_phases(options.phases)):
        program.main(rest)


if __name__ == "__main__":
    main()
