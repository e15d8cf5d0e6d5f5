"""Finds dead processes by their heartbeats and closes their open reservations.

Every process increments a counter in `owners`. A process counts as dead when its counter stays the same over several
successful reads by this process. No clocks are compared, so a locked database, clock skew or a long pause of this
process has no effect.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, literal_column, select

from quicksilver.accounts.entries import Close, How
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import State
from quicksilver.accounts.schema import ledger, owners
from quicksilver.accounts.store import upsert

# A literal, not a bound parameter: only then is the partial index of open rows used.
_IS_OPEN = ledger.c.state == literal_column(f"'{State.OPEN}'")
# Heartbeat value for owners without a heartbeat row.
_NO_HEARTBEAT = -1
_MAX_ORPHANS = 500


class LivenessTracker:
    """Missed heartbeats of each process."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._seen: dict[str, tuple[int, int]] = {}

    def dead(self, heartbeats: dict[str, int]) -> list[str]:
        """Records one read of all heartbeats; returns the owners that count as dead."""
        seen = {}
        for owner, heartbeat in heartbeats.items():
            last, num_missed = self._seen.get(owner, (None, 0))
            seen[owner] = (heartbeat, num_missed + 1 if heartbeat == last else 0)
        self._seen = seen
        return [owner for owner, (_, num_missed) in seen.items() if num_missed >= self._patience]


def write_heartbeat(connection: Connection, owner: str) -> None:
    """Increments the heartbeat of this process; inserts the row if another process has deleted it."""
    insert = upsert(connection, owners)
    next_value = {"heartbeat": owners.c.heartbeat + 1}
    connection.execute(
        insert.on_conflict_do_update(index_elements=["id"], set_=next_value), {"id": owner, "heartbeat": 0}
    )


def read_heartbeats(connection: Connection) -> dict[str, int]:
    """Heartbeats of all owners, including owners that only appear in open reservations."""
    open_rows = select(ledger.c.owner).where(_IS_OPEN).distinct()
    heartbeats = dict.fromkeys(connection.execute(open_rows).scalars(), _NO_HEARTBEAT)
    heartbeats.update({row.id: row.heartbeat for row in connection.execute(select(owners))})
    return heartbeats


def close_orphans(connection: Connection, rules: Ledger, owner: str) -> int:
    """Closes up to 500 open rows of an owner from their last checkpoints; deletes the owner once none is left."""
    open_rows = select(ledger.c.request_id).where(ledger.c.owner == owner, _IS_OPEN)
    orphans = list(connection.execute(open_rows.limit(_MAX_ORPHANS)).scalars())
    if orphans:
        rules.apply(connection, [Close(request_id, How.ORPHAN) for request_id in orphans])
    else:
        connection.execute(delete(owners).where(owners.c.id == owner))
    return len(orphans)
