"""EncoderPool: a few processes that encode long prompts and merge updates into files, each with limits on processor
time and memory.

The tokenizer and the parsers hold the interpreter lock while they work, so a long text read here would stop every
stream of the server. A parser may also crash on a hostile text. Tenants take turns. A process that is lost is replaced,
and its job is done once more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from logging import getLogger

import msgspec

from quicksilver.constrain.compile.fair_queue import FairQueue
from quicksilver.constrain.compile.process import LimitedProcess, ProcessLost, RequestKilledProcess
from quicksilver.errors import InvalidRequest, Unavailable
from quicksilver.server.encoding.jobs import Checked, CheckRewrite, Encoded, EncodeJob, Job, Merged, MergeUpdate
from quicksilver.server.encoding.worker import Reply, Setup
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

logger = getLogger(__name__)

START_ATTEMPTS = 3
# The least that a job counts against the bounds on waiting jobs.
MIN_JOB_BYTES = 16 * 2**10


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    num_processes: int = 2
    # Processor time for one prompt.
    limit_s: float = 5.0
    # Address space that a process may add to what it started with.
    memory_bytes: int = 2**30
    # A process that owes a reply and uses no processor time for this long is replaced.
    stall_s: float = 2.0
    # Longest time for one prompt, waiting included.
    deadline_s: float = 20.0
    # Bytes of jobs that may wait or be in work, of all tenants and of one. Short prompts are many and long ones few.
    max_waiting_bytes: int = 256 * 2**20
    max_waiting_bytes_tenant: int = 32 * 2**20


class EncoderPool:
    """`start`, then `encode`, then `stop`; all on one event loop."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, config: EncoderConfig | None = None) -> None:
        self.config = config or EncoderConfig()
        # Processes that were replaced.
        self.num_replaced = 0
        setup = msgspec.msgpack.encode(Setup.of(tokenizer, template))
        program = ("-m", "quicksilver.server.encoding.worker", str(self.config.memory_bytes), str(self.config.limit_s))
        self._processes = [
            LimitedProcess(program, self.config.stall_s, setup) for _ in range(self.config.num_processes)
        ]
        self._idle: FairQueue[LimitedProcess] = FairQueue()
        self._restarts: set[asyncio.Task[None]] = set()
        self._waiting_bytes: Counter[str] = Counter()
        self._is_open = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    async def start(self) -> None:
        """Returns when all processes are ready."""
        try:
            await asyncio.gather(*(process.restart(START_ATTEMPTS) for process in self._processes))
        except (ProcessLost, OSError) as error:
            await self.stop()
            raise Unavailable(f"encoder processes cannot be started: {error}", code="encoder_unavailable") from error
        self._is_open = True
        for process in self._processes:
            self._idle.give(process)

    async def stop(self) -> None:
        """Kills all processes. Afterwards `encode` raises Unavailable."""
        self._is_open = False
        restarts = list(self._restarts)
        for task in restarts:
            task.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))
        self._idle = FairQueue()

    async def encode(self, job: EncodeJob, tenant: str) -> Encoded:
        """Raises InvalidRequest if the text is refused, Unavailable if no process answered before the deadline."""
        try:
            reply = await self._reply(job, tenant)
        except RequestKilledProcess as error:
            what = f"{self.config.limit_s:g} s" if error.is_late else "the memory allowed"
            raise InvalidRequest(f"The prompt takes more than {what} to encode.") from error
        if reply.refusal is not None:
            raise InvalidRequest(reply.refusal.message, param=reply.refusal.param, code=reply.refusal.code)
        if not isinstance(reply.result, Encoded):
            raise RuntimeError(f"encoder process: {reply.failure}")
        return reply.result

    async def perform(self, job: MergeUpdate | CheckRewrite, tenant: str) -> Merged | Checked | None:
        """None if the job crashed its process, failed, or took more time or memory than allowed. Raises Unavailable as
        `encode` does."""
        try:
            reply = await self._reply(job, tenant)
        except RequestKilledProcess as error:
            logger.warning("%s was not done: %s", type(job).__name__, error)
            return None
        if reply.failure:
            logger.error("%s failed: %s", type(job).__name__, reply.failure)
        return None if isinstance(reply.result, Encoded) else reply.result

    async def _reply(self, job: Job, tenant: str) -> Reply:
        data = msgspec.msgpack.encode(job)
        async with self._turn(tenant, max(len(data), MIN_JOB_BYTES)) as process:
            return await self._request(process, data)

    @asynccontextmanager
    async def _turn(self, tenant: str, num_bytes: int) -> AsyncIterator[LimitedProcess]:
        """A process for one job of this size, within the deadline."""
        waiting = self._waiting_bytes
        if not self._is_open or not self._has_room(tenant, num_bytes):
            raise Unavailable("Too many long prompts wait to be encoded.", code="encoder_unavailable")
        waiting[tenant] += num_bytes
        try:
            async with asyncio.timeout(self.config.deadline_s):
                process = await self._idle.take(tenant)
                try:
                    yield process
                finally:
                    self._give_back(process)
        except (TimeoutError, ProcessLost) as error:
            raise Unavailable("The prompt was not encoded in time.", code="encoder_unavailable") from error
        finally:
            waiting[tenant] -= num_bytes
            if not waiting[tenant]:
                del waiting[tenant]

    def _has_room(self, tenant: str, num_bytes: int) -> bool:
        """Whether the job may wait. A tenant without other jobs may always send one."""
        waiting = self._waiting_bytes
        if waiting.total() + num_bytes > self.config.max_waiting_bytes:
            return False
        return not waiting[tenant] or waiting[tenant] + num_bytes <= self.config.max_waiting_bytes_tenant

    async def _request(self, process: LimitedProcess, data: bytes) -> Reply:
        try:
            answer = await process.request(data)
        except ProcessLost:
            self.num_replaced += 1
            await process.restart()
            answer = await process.request(data)
        return msgspec.msgpack.decode(answer, type=Reply)

    def _give_back(self, process: LimitedProcess) -> None:
        """Makes an idle process available; restarts one that owes a reply or is dead."""
        if process.is_idle:
            self._idle.give(process)
        elif self._is_open:
            self.num_replaced += 1
            task = asyncio.create_task(self._restart(process))
            self._restarts.add(task)
            task.add_done_callback(self._restarts.discard)

    async def _restart(self, process: LimitedProcess) -> None:
        await process.restart()
        self._idle.give(process)
