"""Our own peer ids: the one of now, and earlier ones until the works under them are over (spec section 8)."""

from typing import Final, NamedTuple

from aghbus.store.engine.sql import Connection, Reader
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.envelopes import fetch

_FORMER: Final = """
SELECT i.peer_id, i.since_ms,
    (SELECT count(*) FROM works AS w
        WHERE w.state IN ('submitted', 'working', 'needs_input')
        AND i.peer_id = CASE w.role WHEN 'initiator' THEN w.initiator WHEN 'target' THEN w.target END),
    (SELECT count(*) FROM envelopes AS e
        WHERE e.sender = i.peer_id AND e.direction = 'out' AND e.seq IN (
            SELECT seq FROM outbox WHERE state IN ('queued', 'expired', 'dead') AND state = 'queued'
            UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL))
FROM identities AS i WHERE i.retired_ms IS NULL AND i.peer_id <> ? ORDER BY i.since_ms, i.peer_id
"""


class Former(NamedTuple):
    """An earlier peer id that has not retired: ours since `since_ms` (Unix milliseconds), with so many open works, and
    so many messages of its own that still go out or out again."""

    peer_id: str
    since_ms: int
    open_works: int
    unsent: int

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do under it."""
        return not (self.open_works or self.unsent)


def begin(tx: Transaction, us: str, now_ms: int) -> None:
    """From now on we are `us`; an id that had retired is ours once more."""
    tx.db.execute(
        "INSERT INTO identities (peer_id, since_ms) VALUES (?, ?) ON CONFLICT DO UPDATE SET retired_ms = NULL",
        (us, now_ms),
    )


def former(db: Connection, us: str) -> list[Former]:
    """The ids before `us` that have not retired, oldest first."""
    return [Former(*row) for row in db.execute(_FORMER, (us,))]


def newest_of_key(db: Connection, fingerprint: str) -> str | None:
    """The handle under which the key of this fingerprint was used last; None when it never was."""
    row = db.execute(
        "SELECT peer_id FROM identities WHERE peer_id LIKE '%@' || ? ORDER BY retired_ms IS NOT NULL, since_ms DESC LIMIT 1",
        (fingerprint,),
    ).fetchone()
    return None if row is None else str(row[0])


async def read_former(reader: Reader, us: str) -> list[Former]:
    """The same through the connection that only reads."""
    return [Former(*row) for row in await fetch(reader, _FORMER, [us])]


def retire_idle(tx: Transaction, us: str, now_ms: int) -> list[str]:
    """Retires the ids before `us` under which nothing is left to do; which they were."""
    idle = [one.peer_id for one in former(tx.db, us) if one.idle]
    tx.db.executemany("UPDATE identities SET retired_ms = ? WHERE peer_id = ?", [(now_ms, peer_id) for peer_id in idle])
    return idle
