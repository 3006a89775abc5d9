-- The peer ids under which this store's daemon has been on the bus: a key, or another one, changes it (spec section 8).

CREATE TABLE identities (
    peer_id TEXT NOT NULL PRIMARY KEY,
    since_ms INTEGER NOT NULL, -- Unix milliseconds
    retired_ms INTEGER -- null: ours now, or until the works under it are over
) STRICT, WITHOUT ROWID;

-- Whom the open works say we were.
INSERT INTO identities (peer_id, since_ms)
SELECT iif(role = 'initiator', initiator, target), min(opened_ms) FROM works
WHERE state IN ('submitted', 'working', 'needs_input') AND role <> 'observer' GROUP BY 1;
