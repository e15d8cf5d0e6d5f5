"""TrainerProcess: starts a trainer while fine-tuning jobs are open, and tells it when requests wait for an engine.

The trainer is a process of its own with a low priority. One that ends, for whatever reason, is started again as long as
a job is open; jobs of an earlier server process are continued too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import TYPE_CHECKING

from quicksilver.core import EngineClient
from quicksilver.errors import QuicksilverError
from quicksilver.server.storage import Storage
from quicksilver.tuning.jobs import JobStore
from quicksilver.tuning.proposing import propose_due
from quicksilver.tuning.settings import TrainerSettings
from quicksilver.tuning.sweep import sweep_store

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

log = logging.getLogger("quicksilver.server")

COMMAND = (sys.executable, "-m", "quicksilver.training.service.program")
# Seconds between two searches for open jobs, and between two checks of the engines while a trainer runs.
POLL_S, LOOK_S = 1.0, 0.1
# Seconds between two deletions of expired objects in the store.
SWEEP_S = 3600.0
# A trainer may finish its step and write a checkpoint before it is ended.
STOP_S = 15.0


class TrainerProcess:
    def __init__(
        self,
        storage: Storage,
        engines: Mapping[str, EngineClient],
        settings: TrainerSettings,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._storage, self._engines, self._settings, self._command = storage, engines, settings, command
        self.process: Process | None = None

    async def watch(self) -> None:
        """Runs until it is cancelled; then the trainer is stopped."""
        sweeping = asyncio.create_task(self._sweep())
        try:
            while True:
                if await self._has_open_jobs():
                    await self._run_once()
                await asyncio.sleep(POLL_S)
        finally:
            sweeping.cancel()
            await self.stop()

    async def _sweep(self) -> None:
        """Deletes what is old and makes proposals that are due. Also where no job is ever open: captured suggestions
        are kept for a limited time."""
        while True:
            if self._storage.has_objects:
                try:
                    await self._storage.run(lambda store: sweep_store(store, self._settings.stored_days))
                    await self._storage.run(self._propose)
                except QuicksilverError as error:
                    log.warning("old objects were not swept: %s", error.message)
            await asyncio.sleep(SWEEP_S)

    def _propose(self, store: ObjectStore) -> None:
        propose_due(store, self._settings.home, self._settings.models, self._settings.max_jobs)

    async def _has_open_jobs(self) -> bool:
        if not self._storage.has_objects:
            return False
        try:
            return await self._storage.run(lambda store: JobStore(store).has_claimable(self._settings.models))
        except QuicksilverError as error:
            log.warning("fine-tuning jobs cannot be read: %s", error.message)
            return False

    async def _run_once(self) -> None:
        """One trainer process, from its start to its end."""
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        self.process = process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, env=environment)
        assert process.stdin is not None
        process.stdin.write(self._settings.encode() + b"\n")
        ended = asyncio.create_task(process.wait())
        was_busy = False
        while not ended.done():
            await asyncio.wait({ended}, timeout=LOOK_S)
            is_busy = await self._has_waiting()
            if is_busy != was_busy and not ended.done():
                was_busy = is_busy
                process.stdin.write(b"b" if is_busy else b"i")
        if ended.result():
            log.warning("the trainer process ended with status %d", ended.result())

    async def _has_waiting(self) -> bool:
        for engine in self._engines.values():
            try:
                if (await engine.stats()).waiting:
                    return True
            except QuicksilverError:
                continue
        return False

    async def stop(self) -> None:
        process = self.process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
