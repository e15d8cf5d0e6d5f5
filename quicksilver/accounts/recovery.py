"""Closing what a dead process left open.

Every process counts a beat in `owners`. No clock is compared: an owner is dead when its beat has not moved over
several of our own successful looks, so a locked database, a skewed clock or a long pause of ours kills nobody.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, literal_column, select

from quicksilver.accounts.entries import Close, How
from quicksilver.accounts.ledger import Ledger
from quicksilver.accounts.records import State
from quicksilver.accounts.schema import ledger, owners
from quicksilver.accounts.store import upsert

_IS_OPEN = ledger.c.state == literal_column(f"'{State.OPEN}'")
"""Spelt out, not bound: only then is the small index of open rows used."""
_NO_BEAT = -1
"""Of an owner that is named by open rows alone."""
_ORPHANS_AT_ONCE = 500


class Lookout:
    """Remembers how long each owner's beat has stood still, in looks."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._seen: dict[str, tuple[int, int]] = {}

    def dead(self, beats: dict[str, int]) -> list[str]:
        """Note one look at all beats; return the owners given up."""
        seen = {}
        for owner, beat in beats.items():
            last, still = self._seen.get(owner, (None, 0))
            seen[owner] = (beat, still + 1 if beat == last else 0)
        self._seen = seen
        return [owner for owner, (_, still) in seen.items() if still >= self._patience]


def beat(connection: Connection, owner: str) -> None:
    """Show that we live. Writes the row anew if others gave us up."""
    insert = upsert(connection, owners)
    moved = {"beat": owners.c.beat + 1}
    connection.execute(insert.on_conflict_do_update(index_elements=["id"], set_=moved), {"id": owner, "beat": 0})


def read_beats(connection: Connection) -> dict[str, int]:
    """Beats of all owners, those included that only open reservations speak of."""
    open_rows = select(ledger.c.owner).where(_IS_OPEN).distinct()
    beats = dict.fromkeys(connection.execute(open_rows).scalars(), _NO_BEAT)
    beats.update({row.id: row.beat for row in connection.execute(select(owners))})
    return beats


def close_orphans(connection: Connection, books: Ledger, owner: str) -> int:
    """Close some of an owner's open rows from their last checkpoints; forget the owner once none is left."""
    open_rows = select(ledger.c.request_id).where(ledger.c.owner == owner, _IS_OPEN)
    orphans = list(connection.execute(open_rows.limit(_ORPHANS_AT_ONCE)).scalars())
    if orphans:
        books.apply(connection, [Close(request_id, How.ORPHAN) for request_id in orphans])
    else:
        connection.execute(delete(owners).where(owners.c.id == owner))
    return len(orphans)
