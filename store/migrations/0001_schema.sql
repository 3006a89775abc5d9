-- Times ending in _ms are Unix milliseconds, others Unix seconds. Every index states what needs it: at ten million rows
-- an index that nobody asks for is the dearest part of an insert. No CHECK constraints: the values of state columns are
-- Literal types that mypy checks, and the constraints cost a sixth of every insert.

CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- Every envelope that was committed, in the order of its commit. AUTOINCREMENT: a sequence is never given twice, also
-- when retention removed the newest rows, since streams resume by it.
CREATE TABLE envelopes (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    direction TEXT NOT NULL,
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    kind TEXT NOT NULL,
    msg_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipient TEXT,
    surface TEXT,
    container TEXT,
    pair_a TEXT,
    pair_b TEXT,
    work_id TEXT,
    trust TEXT NOT NULL,
    event TEXT,
    outcome TEXT,
    reason TEXT,
    state_before TEXT,
    state_after TEXT,
    received_ms INTEGER NOT NULL,
    raw BLOB NOT NULL -- last: what does not fit the page overflows without dragging the other columns along
) STRICT;

-- One message by its id; what we sent ourselves (a copy that the broker echoes, a request repeated, a receipt's for_id).
CREATE INDEX envelopes_id ON envelopes (msg_id);
-- A work's messages and its history, in sequence (the rowid ends every index entry).
CREATE INDEX envelopes_work ON envelopes (work_id) WHERE work_id IS NOT NULL;
-- A thread's or a room's messages, in sequence.
CREATE INDEX envelopes_container ON envelopes (container) WHERE container IS NOT NULL;

CREATE TABLE works (
    id INTEGER PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    work_id TEXT NOT NULL,
    surface TEXT NOT NULL,
    container TEXT NOT NULL,
    initiator TEXT NOT NULL,
    target TEXT NOT NULL,
    role TEXT NOT NULL,
    state TEXT NOT NULL,
    trust TEXT NOT NULL,
    opening_id TEXT NOT NULL,
    advanced INTEGER NOT NULL,
    terminal_id TEXT,
    terminal_sender TEXT,
    opened_seq INTEGER NOT NULL,
    opened_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    result_seq INTEGER, -- the last envelope that carried a result
    text TEXT NOT NULL,
    message TEXT,
    UNIQUE (workspace_id, channel, work_id) -- the key of the lifecycle (spec section 6)
) STRICT;

-- The list of works, latest change first.
CREATE INDEX works_recent ON works (last_seq);
-- How many are open, by state.
CREATE INDEX works_open ON works (state) WHERE state IN ('submitted', 'working', 'needs_input');

-- Each applied envelope is a row of the work's history (spec section 6): one truth, so no table of its own. Retention
-- removes the envelopes of a work only together with the work.
CREATE VIEW work_history AS
SELECT w.id AS work, e.seq, e.msg_id, e.kind, e.event, e.sender AS actor, e.outcome, e.state_before, e.state_after,
    e.received_ms, e.raw
FROM works AS w
JOIN envelopes AS e
    ON e.work_id = w.work_id AND e.workspace_id = w.workspace_id AND e.channel = w.channel AND e.seq >= w.opened_seq
WHERE e.outcome IN ('opened', 'advanced', 'unchanged') AND e.state_after IS NOT NULL;

-- The dedup window. `slot` is the minute of expiry and, below it, a running number: rows of one expiry lie together, so
-- that neither inserting nor expiring needs a second index.
CREATE TABLE seen (
    slot INTEGER PRIMARY KEY,
    key BLOB NOT NULL
) STRICT;

CREATE TABLE threads (
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    thread_id TEXT NOT NULL,
    messages INTEGER NOT NULL,
    first_ms INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, channel, thread_id)
) STRICT, WITHOUT ROWID;

-- Direct rooms by (workspace, channel, id, pair): a takeover leaves the other pair's row and messages apart (section 4).
CREATE TABLE rooms (
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    direct_id TEXT NOT NULL,
    pair_a TEXT NOT NULL,
    pair_b TEXT NOT NULL,
    authoritative INTEGER NOT NULL,
    current INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    last_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, channel, direct_id, pair_a, pair_b)
) STRICT, WITHOUT ROWID;

-- An id stands for one pair at a time.
CREATE UNIQUE INDEX rooms_current ON rooms (workspace_id, channel, direct_id) WHERE current = 1;

CREATE TABLE peers (
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    peer_id TEXT NOT NULL,
    trust TEXT NOT NULL,
    first_seen_ms INTEGER NOT NULL,
    last_seen_ms INTEGER NOT NULL,
    card BLOB NOT NULL,
    PRIMARY KEY (workspace_id, channel, peer_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE inbox (
    seq INTEGER PRIMARY KEY REFERENCES envelopes (seq) ON DELETE CASCADE,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    available_ms INTEGER NOT NULL, -- 0 at first: a clock that steps back hides nothing new
    lease TEXT,
    lease_until_ms INTEGER,
    last_error TEXT
) STRICT;

-- The next ready one, the expired leases, the dead letters, and how many there are: acked rows are not in it.
CREATE INDEX inbox_open ON inbox (state, seq, available_ms) WHERE state IN ('ready', 'leased', 'dead');

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY REFERENCES envelopes (seq) ON DELETE CASCADE,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, -- the envelope's last fresh second, plus one
    published_ms INTEGER,
    subject TEXT NOT NULL,
    detail TEXT
) STRICT;

-- What has to go out, in sequence; what failed, counted. Published and receipted rows are not in it.
CREATE INDEX outbox_open ON outbox (state, seq, expires_at) WHERE state IN ('queued', 'expired', 'dead');

CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    received_ms INTEGER NOT NULL,
    subject TEXT NOT NULL,
    message_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    size INTEGER NOT NULL, -- bytes as received
    raw BLOB NOT NULL -- cut
) STRICT;
