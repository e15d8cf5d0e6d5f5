"""The trainer process: `python -m quicksilver.training.service.program`.

Standard input gives one line of settings and then one letter per change: `b` while requests wait for the engine, `i`
when none waits. Its end stops the process, after a checkpoint.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import uuid
from typing import BinaryIO

from quicksilver.accounts.objects import ObjectStore, open_local
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.errors import QuicksilverError
from quicksilver.training.service.lease import Signals
from quicksilver.training.service.trainer import Trainer
from quicksilver.tuning.jobs import JobStore
from quicksilver.tuning.settings import TrainerSettings
from quicksilver.tuning.sweep import sweep_home, sweep_store

log = logging.getLogger("quicksilver.training")

NICENESS = 10
POLL_S = 0.5
RETRY_S = 2.0


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    os.nice(NICENESS)
    settings = TrainerSettings.decode(sys.stdin.buffer.readline())
    signals = Signals()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: signals.is_stopping.set())
    threading.Thread(target=listen, args=(sys.stdin.buffer, signals), daemon=True).start()
    work(settings, signals)
    return 0


def listen(stream: BinaryIO, signals: Signals) -> None:
    """Follows the letters of the parent until it ends."""
    while letter := stream.read(1):
        (signals.is_busy.set if letter == b"b" else signals.is_busy.clear)()
    signals.is_stopping.set()


def open_objects(settings: TrainerSettings) -> tuple[ObjectStore, TrainingCharges | None]:
    if settings.accounts is None:
        return open_local(settings.home / "objects.db"), None
    charges = TrainingCharges(*settings.accounts)
    return charges.objects, charges


def work(settings: TrainerSettings, signals: Signals) -> None:
    """Works on jobs, the oldest first, until none came for `idle_s` or the process is told to stop."""
    process = uuid.uuid4().hex
    objects, charges = open_objects(settings)
    jobs = JobStore(objects)
    trainer = Trainer(jobs, settings, process, charges, signals)
    _sweep(objects, settings)
    worked_at = time.monotonic()
    while not signals.is_stopping.is_set() and time.monotonic() - worked_at < settings.idle_s:
        try:
            job = jobs.claim(process, settings.models)
            if job is not None:
                trainer.run(job)
                worked_at = time.monotonic()
        except QuicksilverError as error:
            log.warning("the store does not answer: %s", error.message)
            job = None
            signals.is_stopping.wait(RETRY_S)
        if job is None:
            signals.is_stopping.wait(POLL_S)


def _sweep(objects: ObjectStore, settings: TrainerSettings) -> None:
    try:
        sweep_store(objects, settings.stored_days)
        sweep_home(objects, settings.home)
    except QuicksilverError as error:
        log.warning("nothing was swept: %s", error.message)


if __name__ == "__main__":
    sys.exit(main())
