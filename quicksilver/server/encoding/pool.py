"""EncoderPool: a few processes that encode long prompts and merge updates into files, each with limits on processor
time and memory.

The parsers hold the interpreter lock while they work, so a long file read here would stop every stream of the server.
A parser may also crash on a hostile text, and a template may never end. Tenants take turns. A process that is lost is
replaced, and its job is done once more. UpdateMerger uses the pool where there is one: a text that crashes the parser
or takes too long to read costs only its own request, and nothing is merged.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from logging import getLogger

import msgspec

from quicksilver.constrain.compile.process import LimitedProcess, RequestKilledProcess
from quicksilver.constrain.compile.process_pool import PoolRefusal, ProcessPool
from quicksilver.editing.apply import ApplyRequest, MergedPart, Rewrite, checked_reply, merge
from quicksilver.errors import InvalidRequest, Unavailable
from quicksilver.server.encoding.prompt_encoder import Encoded, EncodeJob
from quicksilver.server.encoding.worker import Checked, CheckRewrite, Job, Merged, MergeUpdate, Reply, Setup
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer

logger = getLogger(__name__)

# The least that a job counts against the bounds on waiting jobs.
MIN_JOB_BYTES = 16 * 2**10
MAX_THREADS = 8


def default_num_threads() -> int:
    """Half of the cores, at most `MAX_THREADS`: a prompt of 16,000 tokens has about 20 pieces."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_THREADS, cores // 2))


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    num_processes: int = 2
    # Threads of a process, for the pieces of one prompt.
    num_threads: int = field(default_factory=default_num_threads)
    # Processor time for one prompt, that of all threads.
    limit_s: float = 5.0
    # Address space that a process may add to what it started with.
    memory_bytes: int = 2**30
    # A process that owes a reply and uses no processor time for this long is replaced.
    stall_s: float = 2.0
    # Seconds between two heartbeats to idle processes.
    heartbeat_s: float = 1.0
    # Longest time for one prompt, waiting included.
    deadline_s: float = 20.0
    # Bytes of jobs that may wait or be in work, of all tenants and of one. Short prompts are many and long ones few.
    max_waiting_bytes: int = 256 * 2**20
    max_waiting_bytes_tenant: int = 32 * 2**20


class EncoderPool(ProcessPool[LimitedProcess]):
    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, config: EncoderConfig | None = None) -> None:
        self.config = config = config or EncoderConfig()
        setup = msgspec.msgpack.encode(Setup.of(tokenizer, template))
        limits = (config.memory_bytes, config.limit_s, config.num_threads)
        program = ("-m", "quicksilver.server.encoding.worker", *map(str, limits))
        processes = [LimitedProcess(program, config.stall_s, setup) for _ in range(config.num_processes)]
        super().__init__(
            processes,
            config.deadline_s,
            config.heartbeat_s,
            config.max_waiting_bytes,
            config.max_waiting_bytes_tenant,
        )

    def _refusal(self, reason: PoolRefusal, detail: str = "") -> Unavailable:
        if detail:
            return Unavailable(f"encoder processes cannot be started: {detail}", code="encoder_unavailable")
        if reason is PoolRefusal.LATE:
            return Unavailable("The prompt was not encoded in time.", code="encoder_unavailable")
        return Unavailable("Too many long prompts wait to be encoded.", code="encoder_unavailable")

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
            answer = await self._retry(process, lambda: process.request(data))
        return msgspec.msgpack.decode(answer, type=Reply)


class UpdateMerger:
    def __init__(self, pool: EncoderPool | None = None) -> None:
        self._pool = pool

    async def merge(self, request: ApplyRequest, tenant: str) -> tuple[MergedPart, ...] | None:
        """The parts of the merged file; None if the merge failed or took more time or memory than allowed."""
        if self._pool is None:
            return tuple(await asyncio.to_thread(merge, request.original, request.update))
        result = await self._pool.perform(MergeUpdate(request.original, request.update), tenant)
        return result.parts if isinstance(result, Merged) else None

    async def check(self, part: Rewrite, answer: str, tenant: str) -> str | None:
        """The text of a rewritten part; None if the answer lost code or cannot be checked."""
        if self._pool is None:
            return await asyncio.to_thread(checked_reply, part, answer)
        try:
            result = await self._pool.perform(CheckRewrite(part, answer), tenant)
        except Unavailable:
            return None
        return result.text if isinstance(result, Checked) else None
