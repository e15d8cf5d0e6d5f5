"""How long `verify` canvases should be: what a round yields at the acceptance seen, over what it costs on this device.

No torch. Times come from a runner that has timed its graphs. A canvas of one token is autoregression, so under load, or
where drafts keep failing, requests go on as plain AR does; what they say is the same at any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quicksilver.engine.sequence import Sequence

LENS = (1, 2, 4, 8, 16)
USUAL_CHANCE, USUAL_WEIGHT = 0.75, 12
"""What is believed of drafted tokens before any were seen, and how many seen tokens outweigh that."""
HOST_MS, HOST_MS_PER_REQUEST, HOST_MS_PER_ROW = 0.2, 0.03, 0.002
"""What a step costs on the host."""
MARGIN = 1.05
"""How much better than autoregression a round must look."""


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A round graph, which runs ahead of the host. A round of one forward yields a token less."""

    num_requests: int
    """The most it carries."""
    canvas_len: int
    is_one_forward: bool
    ms: float


@dataclass(frozen=True, slots=True)
class Pace:
    forward_ms: Mapping[tuple[int, bool], float]
    """(rows a forward has room for, whether canvas rows wear the adapter) -> its time, head included."""
    rounds: tuple[TimedRound, ...] = ()
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def canvas_len(self, num_requests: int, chance: float) -> int:
        """The length that gives most tokens a second when so many run and a drafted token is right with `chance`."""
        key = (max(num_requests, 1), round(50 * chance))
        if key not in self._known:
            self._known[key] = self._best_len(key[0], key[1] / 50)
        return self._known[key]

    def _best_len(self, num_requests: int, chance: float) -> int:
        speeds = {n: self._crowd_speed(num_requests, n, chance) for n in LENS}
        room = min((graph.num_requests for graph in self.rounds if graph.num_requests >= num_requests), default=0)
        for graph in self.rounds:
            if graph.num_requests == room:
                speed = (yield_of(graph.canvas_len, chance) - graph.is_one_forward) / graph.ms
                speeds[graph.canvas_len] = max(speeds.get(graph.canvas_len, 0.0), speed)
        best = max(speeds, key=lambda n: speeds[n])
        return best if speeds[best] > MARGIN * speeds[1] else 1

    def _crowd_speed(self, num_requests: int, canvas_len: int, chance: float) -> float:
        """Tokens a millisecond for each request; 0 where nothing that large was timed."""
        rows = num_requests * canvas_len
        plain, gated = (self._forward_ms(rows, is_gated) for is_gated in (False, True))
        if plain is None or gated is None:
            return 0.0
        host_ms = HOST_MS + HOST_MS_PER_REQUEST * num_requests + HOST_MS_PER_ROW * rows
        if canvas_len == 1:
            return 1 / (plain + host_ms)
        return yield_of(canvas_len, chance) / (plain + gated + 2 * host_ms)

    def _forward_ms(self, rows: int, is_gated: bool) -> float | None:
        room = min((size for size, gated in self.forward_ms if gated == is_gated and size >= rows), default=None)
        return None if room is None else self.forward_ms[room, is_gated]


def yield_of(canvas_len: int, chance: float) -> float:
    """Tokens of a round of two forwards: the causal model's own two, and between them the drafted ones that are right
    up to the first that is not."""
    return 1.0 if canvas_len == 1 else 2 + sum(chance**i for i in range(1, canvas_len))


def chance_of(sequences: Iterable[Sequence]) -> float:
    """How likely the next drafted token of these requests is right, from what became of theirs so far."""
    accepted, rejected = USUAL_CHANCE * USUAL_WEIGHT, (1 - USUAL_CHANCE) * USUAL_WEIGHT
    for sequence in sequences:
        accepted += sequence.accepted
        rejected += sequence.rejected
    return accepted / (accepted + rejected)
