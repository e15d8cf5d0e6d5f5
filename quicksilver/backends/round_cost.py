"""How long `verify` canvases should be: what a round yields at the acceptance seen, over what it costs on this device.

No torch. Times come from a runner that has timed its graphs. A canvas of one token is autoregression, so under load, or
where drafts keep failing, requests go on as plain AR does; what they say is the same at any length.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

LENS = (1, 2, 4, 8, 16)
LONGEST_DRAFT = LENS[-1] - 1
USUAL_CHANCE, USUAL_WEIGHT = 0.75, 4
"""What is believed of a drafted token before any were seen, and how many seen ones outweigh that."""
FADING = 0.993
"""What a step leaves of the memory: half of it goes in a hundred."""
TREE_GAIN = {0: 1.0, 16: 1.25, 32: 1.35}
"""By its rows, what a tree multiplies a draft's yield by. Replayed from recorded canvases: coder-1.5b 1.19 and 1.31
over seven domains, 1 to 1.7 in each; nano 1.29 and 1.4 over six."""
HOST_MS, HOST_MS_PER_REQUEST, HOST_MS_PER_ROW = 0.8, 0.045, 0.015
"""What a step costs on the host where no graph runs ahead of it. Fitted to 8, 32 and 64 streams of coder-1.5b beside an
H200, with canvases of one and of eight, within a tenth of a millisecond."""
MARGIN = 1.05
"""How much better than autoregression a round must look, and than the round in use: a change costs a round or two."""


@dataclass(frozen=True, slots=True)
class TimedRound:
    """So many requests that draft so many tokens each and verify them."""

    num_requests: int
    """The most it carries."""
    canvas_len: int
    ms: float
    tree_rows: int = 0

    def speed(self, survival: Seq[float], seen_rows: int = 0) -> float:
        """Tokens per millisecond for each request: the drafted tokens that are accepted, and the causal model's own
        tokens, two per round or one for a canvas of one. `survival` may have been measured with trees of `seen_rows`;
        it is rescaled to this round's tree."""
        gain = TREE_GAIN.get(self.tree_rows, 1.0) / TREE_GAIN.get(seen_rows, 1.0)
        drafted = min(gain * sum(survival[: self.canvas_len - 1]), self.canvas_len - 1)
        own = 1 if self.canvas_len == 1 else 2
        return (own + drafted) / self.ms


class AcceptanceHistory:
    """What became of drafted tokens lately, by their place in the draft, whoever asked: the best guess for the next."""

    def __init__(self) -> None:
        self._tried = [0.0] * LONGEST_DRAFT
        self._held = [0.0] * LONGEST_DRAFT

    def add(self, accepted: int, drafted: int) -> None:
        """A verification. What stood behind the first wrong token was not tried."""
        for i in range(min(accepted + 1, drafted, LONGEST_DRAFT)):
            self._tried[i] += 1
            self._held[i] += i < accepted

    def fade(self) -> None:
        self._tried = [count * FADING for count in self._tried]
        self._held = [count * FADING for count in self._held]

    def survival(self) -> list[float]:
        """How likely the first drafted token proves right, the first two, the first three. Where little was seen a
        place is believed to be like the one before."""
        chance, alive, found = USUAL_CHANCE, 1.0, []
        for tried, held in zip(self._tried, self._held, strict=True):
            chance = (held + USUAL_WEIGHT * chance) / (tried + USUAL_WEIGHT)
            alive *= chance
            found.append(alive)
        return found


@dataclass(frozen=True, slots=True)
class RoundCost:
    forward_ms: Mapping[tuple[int, bool], float]
    """(rows a forward has room for, whether canvas rows wear the adapter) -> its time, head included."""
    rounds: tuple[TimedRound, ...] = ()
    """Graphs of whole rounds, which run ahead of the host."""
    _known: dict[int, tuple[TimedRound, ...]] = field(default_factory=dict)

    def canvas_len(self, num_requests: int, survival: Seq[float], current: int = 0) -> int:
        """The length that gives most tokens a second when so many run; the current one unless that is clearly worse."""
        speeds = dict.fromkeys(LENS, 0.0)
        ways = self._ways(max(num_requests, 1))
        seen_rows = max((way.tree_rows for way in ways if way.canvas_len == current), default=0)
        for way in ways:
            speeds[way.canvas_len] = max(speeds.get(way.canvas_len, 0.0), way.speed(survival, seen_rows))
        speeds[1] *= MARGIN
        best = max(speeds, key=lambda n: speeds[n])
        return current if MARGIN * speeds.get(current, 0.0) > speeds[best] else best

    def _ways(self, num_requests: int) -> tuple[TimedRound, ...]:
        """All rounds that so many requests can have: graphs, and forwards one by one."""
        if num_requests not in self._known:
            room = min((graph.num_requests for graph in self.rounds if graph.num_requests >= num_requests), default=0)
            ways = [graph for graph in self.rounds if graph.num_requests == room]
            for canvas_len in LENS:
                ms = self._host_driven_ms(num_requests, canvas_len)
                ways += [TimedRound(num_requests, canvas_len, ms)] if ms is not None else []
            self._known[num_requests] = tuple(ways)
        return self._known[num_requests]

    def _host_driven_ms(self, num_requests: int, canvas_len: int) -> float | None:
        """None where nothing that large was timed."""
        rows = num_requests * canvas_len
        plain, gated = (self._forward_ms(rows, is_gated) for is_gated in (False, True))
        if plain is None or gated is None:
            return None
        host_ms = HOST_MS + HOST_MS_PER_REQUEST * num_requests + HOST_MS_PER_ROW * rows
        return plain + host_ms if canvas_len == 1 else plain + gated + 2 * host_ms

    def _forward_ms(self, rows: int, is_gated: bool) -> float | None:
        room = min((size for size, gated in self.forward_ms if gated == is_gated and size >= rows), default=None)
        return None if room is None else self.forward_ms[room, is_gated]
