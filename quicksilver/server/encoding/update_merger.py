"""UpdateMerger: merges updates into files and checks rewritten parts, outside this process where there is a pool.

A text that crashes the parser or takes too long to read costs only its own request: nothing is merged.
"""

from __future__ import annotations

import asyncio

from quicksilver.editing.apply import ApplyRequest, MergedPart, Rewrite, checked_reply, merge
from quicksilver.errors import Unavailable
from quicksilver.server.encoding.pool import EncoderPool
from quicksilver.server.encoding.worker import Checked, CheckRewrite, Merged, MergeUpdate


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
