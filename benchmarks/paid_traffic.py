"""One server process's worth of paid requests, as a client would see them; `ledger_faults.py` starts and kills it.

Everything a client could have observed goes line by line into a pipe the moment it happens, so it outlives a SIGKILL:
  A id [key]     sent                     R id           reserved, and the caller was told so
  W id n         n tokens are on the wire C id n         the checkpoint of n tokens was acknowledged
  F id in c out  a plain answer is ready  D id in c out  an answer was delivered to its last byte
  N id why       refused                  P key body     a saved reply was delivered again
  S process      the database is open
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass

from quicksilver.accounts.config import AccountsConfig
from quicksilver.accounts.identity import Identity
from quicksilver.accounts.records import Idempotency, Order, SavedReply
from quicksilver.accounts.service import Accounts
from quicksilver.core import Usage
from quicksilver.errors import LedgerUnavailable, QuicksilverError

BLOCK_LEN = 8
PROMPT_LEN = 40
MAX_OUTPUT = 48
IN_FLIGHT = 24


@dataclass(frozen=True)
class Plan:
    """The workload of one process."""

    url: str
    config: AccountsConfig
    # API keys. The first is used most.
    secrets: tuple[str, ...]
    name: str
    seed: int
    pipe: int
    num_replay_keys: int


class Traffic:
    """Requests of one process, until it is told to drain or dies."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._count = 0
        self._is_draining = False

    def drain(self, *_: object) -> None:
        self._is_draining = True

    async def run(self) -> None:
        self._accounts = await Accounts.open(self._plan.url, self._plan.config)
        self._say("S", self._plan.name)
        await asyncio.gather(*(self._client() for _ in range(IN_FLIGHT)))
        await self._accounts.close()

    async def _client(self) -> None:
        while not self._is_draining:
            self._count += 1
            request = asyncio.create_task(self._request(f"{self._plan.name}-{self._count}"))
            if self._random.random() < 0.1:  # The client disconnects at a random point.
                await asyncio.sleep(self._random.random() * 0.02)
                request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    async def _request(self, request_id: str) -> None:
        roll = self._random.random()
        try:
            identity = await self._accounts.authenticate(self._random.choice(self._plan.secrets))
            if roll < 0.1:
                await self._replayed(identity, request_id)
            elif roll < 0.55:
                await self._plain(identity, request_id, None)
            else:
                await self._stream(identity, request_id)
        except QuicksilverError as error:
            self._say("N", request_id, type(error).__name__)

    async def _replayed(self, identity: Identity, request_id: str) -> None:
        key = f"k{self._random.randrange(self._plan.num_replay_keys)}-{identity.org_id}"
        once = self._accounts.idempotency(key, key.encode())
        saved = await self._accounts.recall(identity, once)
        if saved is not None:
            self._say("P", key, saved.body.decode())
        else:
            await self._plain(identity, request_id, once)

    async def _plain(self, identity: Identity, request_id: str, once: Idempotency | None) -> None:
        await self._reserve(identity, request_id, once)
        if self._random.random() < 0.05:
            await self._accounts.release(request_id)
            return
        usage = Usage(PROMPT_LEN, self._random.randrange(PROMPT_LEN), self._random.randrange(1, MAX_OUTPUT))
        words = (request_id, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        self._say("F", *words)
        await self._accounts.settle(request_id, usage, SavedReply(200, request_id.encode()))
        self._say("D", *words)

    async def _stream(self, identity: Identity, request_id: str) -> None:
        await self._reserve(identity, request_id, None)
        sent = 0
        try:
            while sent < self._random.randrange(BLOCK_LEN, MAX_OUTPUT):
                sent += BLOCK_LEN
                self._say("W", request_id, sent)
                await self._accounts.checkpoint(request_id, sent, 0)
                self._say("C", request_id, sent)
        except (asyncio.CancelledError, LedgerUnavailable):
            await self._accounts.settle(request_id, Usage(PROMPT_LEN, 0, sent))
            raise
        await self._accounts.settle(request_id, Usage(PROMPT_LEN, 0, sent))
        self._say("D", request_id, PROMPT_LEN, 0, sent)

    async def _reserve(self, identity: Identity, request_id: str, once: Idempotency | None) -> None:
        self._say("A", request_id, once.key if once else "")
        try:
            await self._accounts.reserve(identity, Order(request_id, "nano", PROMPT_LEN, MAX_OUTPUT + BLOCK_LEN, once))
        except asyncio.CancelledError:
            self._say("N", request_id, "cancelled")
            raise
        self._say("R", request_id)

    def _say(self, *words: object) -> None:
        # Below PIPE_BUF, so a line is written whole or not at all.
        os.write(self._plan.pipe, (" ".join(map(str, words)).strip() + "\n").encode())


def run(plan: Plan) -> None:
    """Must be called with SIGTERM blocked, so that a drain request before the handler is installed is not lost."""
    traffic = Traffic(plan)
    signal.signal(signal.SIGTERM, traffic.drain)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    asyncio.run(traffic.run())
