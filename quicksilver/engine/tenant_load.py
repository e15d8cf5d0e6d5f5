"""TenantLoad: refuses the requests of a tenant that has much work open while other tenants are active.

Tenants are admitted in turn, so the work of one delays the others little. It delays the tenant's own requests, which
would wait for minutes on a slow device; a refusal with a retry delay is the better answer. A tenant that is alone is
never refused.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from quicksilver.backends.sequence import Sequence
from quicksilver.diffusion.score import Scorer
from quicksilver.errors import EngineUnavailable

# A tenant is active for this long after its last request.
ACTIVE_S = 10.0
RETRY_AFTER_S = 5.0


class TenantLoad:
    def __init__(self, max_rows: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_rows = max_rows
        self._clock = clock
        # The two tenants with the newest requests, and when these came.
        self._newest: OrderedDict[str, float] = OrderedDict()

    def check(self, tenant: str, sequences: Iterable[Sequence]) -> None:
        """Raises EngineUnavailable if `tenant` has too many rows open among `sequences` and is not alone."""
        now = self._clock()
        has_others = any(other != tenant and now - at < ACTIVE_S for other, at in self._newest.items())
        self._newest[tenant] = now
        self._newest.move_to_end(tenant)
        if len(self._newest) > 2:
            self._newest.popitem(last=False)
        if not (self._max_rows and has_others):
            return
        if sum(open_rows(one) for one in sequences if one.request.tenant == tenant) > self._max_rows:
            raise EngineUnavailable(
                "the open requests of this project fill the engine; retry shortly", retry_after_s=RETRY_AFTER_S
            )


def open_rows(sequence: Sequence) -> int:
    """Rows of the prompt, and of a scoring request, that are not computed yet."""
    rows = max(len(sequence.tokens) - sequence.kv_len - 1, 0)
    if isinstance(sequence.decoder, Scorer):
        num_done = sequence.canvas.step if sequence.canvas is not None else 0
        rows += sum(len(one.tail.token_ids) for one in sequence.decoder.passes[num_done:])
    return rows
