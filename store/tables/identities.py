"""Our own peer ids: the current one, and former ones until their works have ended (spec section 8)."""

from typing import Final, NamedTuple

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Connection, Reader
from aghbus.store.tables.envelopes import fetch

_FORMER: Final = """
SELECT i.peer_id, i.since_ms,
    (SELECT count(*) FROM works AS w
        WHERE w.state IN ('submitted', 'working', 'needs_input')
        AND i.peer_id = CASE w.role WHEN 'initiator' THEN w.initiator WHEN 'target' THEN w.target END),
    (SELECT count(*) FROM envelopes AS e
        WHERE e.sender = i.peer_id AND e.direction = 'out' AND e.seq IN (
            SELECT seq FROM outbox WHERE state NOT IN ('published', 'receipted') AND state = 'queued'
            UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL))
FROM identities AS i WHERE i.retired_ms IS NULL AND i.peer_id <> ? ORDER BY i.since_ms, i.peer_id
"""


class Former(NamedTuple):
    """A former peer id that has not retired: ours since `since_ms` (Unix milliseconds), with its numbers of open works
    and of sent messages that are queued or unanswered."""

    peer_id: str
    since_ms: int
    open_works: int
    unsent: int

    @property
    def idle(self) -> bool:
        """Whether it has no open work and no unsent message."""
        return not (self.open_works or self.unsent)


def begin(tx: Transaction, self_id: str, now_ms: int) -> None:
    """Our peer id is `self_id` from now on; a retired id is active again."""
    tx.db.execute(
        "INSERT INTO identities (peer_id, since_ms) VALUES (?, ?) ON CONFLICT DO UPDATE SET retired_ms = NULL",
        (self_id, now_ms),
    )


def former(db: Connection, self_id: str) -> list[Former]:
    """The former ids that have not retired, oldest first."""
    return [Former(*row) for row in db.execute(_FORMER, (self_id,))]


def newest_of_key(db: Connection, fingerprint: str) -> str | None:
    """The handle under which the key of this fingerprint was used last; None when it never was."""
    row = db.execute(
        "SELECT peer_id FROM identities WHERE peer_id LIKE '%@' || ? ORDER BY retired_ms IS NOT NULL, since_ms DESC LIMIT 1",
        (fingerprint,),
    ).fetchone()
    return None if row is None else str(row[0])


async def all_ids(reader: Reader) -> frozenset[str]:
    """Every id that was ever ours."""
    return frozenset(peer_id for (peer_id,) in await fetch(reader, "SELECT peer_id FROM identities", []))


async def read_former(reader: Reader, self_id: str) -> list[Former]:
    """The same through the connection that only reads."""
    return [Former(*row) for row in await fetch(reader, _FORMER, [self_id])]


def retire_idle(tx: Transaction, self_id: str, now_ms: int) -> list[str]:
    """Retires the idle former ids. Returns them."""
    tx.flush()
    idle = [one.peer_id for one in former(tx.db, self_id) if one.idle]
    tx.db.executemany("UPDATE identities SET retired_ms = ? WHERE peer_id = ?", [(now_ms, peer_id) for peer_id in idle])
    return idle
