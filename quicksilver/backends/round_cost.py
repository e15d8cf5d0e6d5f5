"""Picks the length of `verify` canvases: expected tokens per millisecond at the current acceptance rate. No torch.

The backend measures its forwards and rounds at start-up. A canvas of one token is plain autoregression; it is picked
under load, or while drafts are rejected. The length never changes the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

CANVAS_LENS = (1, 2, 4, 8, 16)
MAX_DRAFT_LEN = CANVAS_LENS[-1] - 1
# Factor on the accepted tokens of a draft, by the rows of its tree. Replayed from recorded canvases: coder-1.5b 1.19
# and 1.31 over seven domains (1 to 1.7 in each), nano 1.29 and 1.4 over six.
TREE_GAIN = {0: 1.0, 16: 1.25, 32: 1.35}
# Time that the host adds to a step that was not queued ahead: fixed, per request and per row. Fitted to 8, 32 and 64
# streams of coder-1.5b on an H200 with canvases of 1 and 8, within 0.1 ms.
HOST_MS, HOST_MS_PER_REQUEST, HOST_MS_PER_ROW = 0.8, 0.045, 0.015
# What a grammar adds for its request. Measured on a CPU (`benchmarks/constrain_host.py`).
HOST_MS_PER_GRAMMAR = 0.09
# A length must be this much faster than the one in use, and drafting than autoregression, because a change wastes work.
MARGIN = 1.05


@dataclass(frozen=True, slots=True)
class TimedRound:
    """The measured time of one round: draft `canvas_len - 1` tokens for each request and verify them."""

    num_requests: int  # at most
    canvas_len: int
    ms: float
    tree_rows: int = 0

    def tokens_per_ms(self, acceptance: Seq[float], measured_rows: int = 0) -> float:
        """Expected tokens per millisecond for each request: the accepted drafted tokens, and the causal model's own
        tokens, two per round or one for a canvas of one. `acceptance` may have been measured with trees of
        `measured_rows`; it is rescaled to the tree of this round."""
        gain = TREE_GAIN.get(self.tree_rows, 1.0) / TREE_GAIN.get(measured_rows, 1.0)
        accepted = min(gain * sum(acceptance[: self.canvas_len - 1]), self.canvas_len - 1)
        own = 1 if self.canvas_len == 1 else 2
        return (own + accepted) / self.ms


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Measured times of a backend."""

    # (largest number of rows, whether canvas rows use the adapter) -> milliseconds of a forward with its head
    forward_ms: Mapping[tuple[int, bool], float]
    # Rounds in one graph, which run ahead of the host.
    rounds: tuple[TimedRound, ...] = ()
    # Rounds of the persistent batch by the number of its slots. Requests that decode in ordinary forwards do not use
    # them.
    slots: tuple[TimedRound, ...] = ()
    _options_of: dict[tuple[int, int], tuple[TimedRound, ...]] = field(default_factory=dict)

    def canvas_len(self, num_requests: int, acceptance: Seq[float], current: int = 0, num_grammars: int = 0) -> int:
        """The length with the most tokens per second for this number of requests, of which `num_grammars` have a
        grammar. `current` stays unless another length is faster by `MARGIN`."""
        speeds = dict.fromkeys(CANVAS_LENS, 0.0)
        options = self._options(max(num_requests, 1), min(num_grammars, num_requests))
        measured_rows = max((one.tree_rows for one in options if one.canvas_len == current), default=0)
        for one in options:
            speed = one.tokens_per_ms(acceptance, measured_rows)
            speeds[one.canvas_len] = max(speeds.get(one.canvas_len, 0.0), speed)
        speeds[1] *= MARGIN
        best = max(speeds, key=lambda n: speeds[n])
        return current if MARGIN * speeds.get(current, 0.0) > speeds[best] else best

    def rows_within(self, ms: float) -> int:
        """Rows of a forward that takes this long, from the two largest measured forwards; 0 if there are not two."""
        measured = sorted((rows, time) for (rows, uses_adapter), time in self.forward_ms.items() if not uses_adapter)
        if len(measured) < 2:
            return 0
        (few, short), (many, long) = measured[-2:]
        per_row = max(long - short, 1e-6) / (many - few)
        return max(int(many + (ms - long) / per_row), 0)

    def _options(self, num_requests: int, num_grammars: int) -> tuple[TimedRound, ...]:
        """The rounds that this number of requests can run: the smallest graphs that hold them, if none has a grammar,
        and single forwards."""
        key = (num_requests, num_grammars)
        if key not in self._options_of:
            graphs = [] if num_grammars else [one for one in self.rounds if one.num_requests >= num_requests]
            size = min((one.num_requests for one in graphs), default=0)
            options = [one for one in graphs if one.num_requests == size]
            for canvas_len in CANVAS_LENS:
                ms = self._host_driven_ms(num_requests, canvas_len, num_grammars)
                options += [TimedRound(num_requests, canvas_len, ms)] if ms is not None else []
            self._options_of[key] = tuple(options)
        return self._options_of[key]

    def _host_driven_ms(self, num_requests: int, canvas_len: int, num_grammars: int) -> float | None:
        """A round of single forwards; None if no forward of this size was measured."""
        rows = num_requests * canvas_len
        verify, draft = (self._forward_ms(rows, uses_adapter) for uses_adapter in (False, True))
        if verify is None or draft is None:
            return None
        host_ms = HOST_MS + HOST_MS_PER_REQUEST * num_requests + HOST_MS_PER_ROW * rows
        host_ms += HOST_MS_PER_GRAMMAR * num_grammars
        return verify + host_ms if canvas_len == 1 else verify + draft + 2 * host_ms

    def _forward_ms(self, rows: int, uses_adapter: bool) -> float | None:
        size = min((size for size, uses in self.forward_ms if uses == uses_adapter and size >= rows), default=None)
        return None if size is None else self.forward_ms[size, uses_adapter]
