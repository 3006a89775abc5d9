-- Times ending in _ms are Unix milliseconds, others Unix seconds. Every index states what needs it: at ten million rows
-- an index is the most expensive part of an insert. No CHECK constraints on the tables that every message writes to: the
-- values of state columns are Literal types that mypy checks, and the constraints cost a sixth of every insert.

CREATE TABLE meta (
    key TEXT NOT NULL PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- Columns that all envelopes of one flow share.
CREATE TABLE flows (
    id INTEGER PRIMARY KEY,
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    sender TEXT NOT NULL,
    recipient TEXT,
    surface TEXT,
    container TEXT,
    pair_a TEXT, -- the peers of a direct room
    pair_b TEXT,
    -- Of its envelopes in the segments of the log (store/engine/log/segments.py):
    messages INTEGER NOT NULL DEFAULT 0,
    first_ms INTEGER, -- when the first was received
    last_ms INTEGER, -- when the last was received
    last_seq INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The id of a flow that is not in memory; the flows of a thread or a room. Only flows that a segment has: the others are
-- in memory, and a new one writes no page of the index.
CREATE INDEX flows_lookup ON flows (container, sender, recipient) WHERE messages > 0;

-- What was decided about an envelope. A few hundred combinations occur.
CREATE TABLE verdicts (
    id INTEGER PRIMARY KEY,
    direction TEXT NOT NULL,
    kind TEXT NOT NULL,
    trust TEXT NOT NULL,
    inbox INTEGER NOT NULL, -- 1: delivered to the inbox
    event TEXT,
    outcome TEXT,
    reason TEXT,
    state_before TEXT,
    state_after TEXT
) STRICT;

-- Every committed envelope, in the order of the commits. A sequence is never used twice: the last entry of the ledger names the
-- highest, even after retention removed its envelope.
CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    flow INTEGER NOT NULL, -- flows.id
    verdict INTEGER NOT NULL, -- verdicts.id
    received_ms INTEGER NOT NULL,
    remember_until INTEGER NOT NULL, -- Unix second until which the id is in the dedup window; 0: it is not
    msg_id TEXT NOT NULL,
    work_id TEXT,
    checksum INTEGER NOT NULL, -- CRC-32 of `raw`, less 2^31, so that it takes four bytes
    raw BLOB NOT NULL -- last: a large value overflows to other pages, and the other columns stay together
) STRICT;

-- Its indexes are made by store/engine/log/segments.py: log_ids, log_flows and log_works.

-- The log with the values of its dictionaries. CROSS JOIN: SQLite reads the log first and looks the others up.
CREATE VIEW envelopes AS
SELECT l.seq, v.direction, s.workspace_id, s.channel, v.kind, l.msg_id, s.sender, s.recipient, s.surface, s.container,
    s.pair_a, s.pair_b, l.work_id, v.trust, v.inbox, v.event, v.outcome, v.reason, v.state_before, v.state_after,
    l.received_ms, l.remember_until, l.flow, l.checksum, l.raw
FROM log AS l CROSS JOIN flows AS s ON s.id = l.flow CROSS JOIN verdicts AS v ON v.id = l.verdict;

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
    reactions TEXT NOT NULL DEFAULT 'none', -- all, questions or none: what its initiator gets in the inbox
    opened_seq INTEGER NOT NULL,
    opened_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    result_seq INTEGER, -- the last envelope that carried a result
    text TEXT NOT NULL,
    message TEXT,
    accept_ms INTEGER, -- how long it may wait for acceptance, in milliseconds; null: without limit
    progress_ms INTEGER, -- how long it may go without a sign of progress, in milliseconds; null: without limit
    due_ms INTEGER, -- when the deadline that applies now passes
    others_bytes INTEGER, -- of its messages, if it is one of others (daemon/state/lanes.py); null: it is not
    handover BLOB, -- JSON, if we opened it for a capability (protocol/agh/handover.py); else null
    next TEXT -- work_id of the work to which it was handed over; null: it was not
) STRICT;

-- The key of the lifecycle (spec section 6). The id leads: a request names a work by its id alone.
CREATE UNIQUE INDEX works_by_id ON works (work_id, channel, workspace_id);
-- The list of works, latest change first in each state; how many are open. One index, because every step of a work writes it.
CREATE INDEX works_states ON works (state, last_seq);
-- Works that may be handed over.
CREATE INDEX works_handovers ON works (id) WHERE handover IS NOT NULL AND terminal_id IS NULL;
-- The next deadline.
CREATE INDEX works_due ON works (due_ms) WHERE due_ms IS NOT NULL;

-- Ids in the dedup window that are not in the log: those of discovery, and of envelopes that retention has removed.
CREATE TABLE remembered_ids (
    until INTEGER NOT NULL, -- Unix second
    key INTEGER NOT NULL, -- store/engine/log/dedup.py
    PRIMARY KEY (until, key)
) STRICT, WITHOUT ROWID;

-- The pairs of direct rooms: a takeover keeps the row and messages of the other pair (spec section 4).
CREATE TABLE rooms (
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    direct_id TEXT NOT NULL,
    pair_a TEXT NOT NULL,
    pair_b TEXT NOT NULL,
    authoritative INTEGER NOT NULL,
    current INTEGER NOT NULL,
    PRIMARY KEY (workspace_id, channel, direct_id, pair_a, pair_b)
) STRICT, WITHOUT ROWID;

-- An id belongs to one pair at a time.
CREATE UNIQUE INDEX rooms_current ON rooms (workspace_id, channel, direct_id) WHERE current = 1;

CREATE TABLE peers (
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    peer_id TEXT NOT NULL,
    trust TEXT NOT NULL,
    first_seen_ms INTEGER NOT NULL,
    last_seen_ms INTEGER NOT NULL,
    card BLOB NOT NULL,
    acknowledges INTEGER, -- whether its daemon acknowledges commits; null: not known
    summary TEXT, -- of its last greet
    PRIMARY KEY (workspace_id, channel, peer_id)
) STRICT, WITHOUT ROWID;

-- The inbox is a position with exceptions. A delivered envelope (`inbox` = 1) without a row is acked up to `inbox_position`
-- and ready after it. Other messages have a row: leased, returned, dead, taken before an older one. An acked message
-- keeps its row for a while, so that its lease is known. An own message that was given up has a row, too.
INSERT INTO meta (key, value) VALUES ('inbox_position', 0);

CREATE TABLE inbox (
    seq INTEGER PRIMARY KEY REFERENCES log (seq) ON DELETE CASCADE,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    available_ms INTEGER NOT NULL, -- when a returned message is ready again
    lease TEXT,
    lease_until_ms INTEGER,
    last_error TEXT
) STRICT;

-- The next returned message. Leases are not in it, so that leasing and acking write one page of the table.
CREATE INDEX inbox_returned ON inbox (state, seq, available_ms) WHERE state = 'ready';

CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY REFERENCES log (seq) ON DELETE CASCADE,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    expires_at INTEGER NOT NULL, -- the envelope's last fresh second, plus one
    published_ms INTEGER,
    subject TEXT NOT NULL,
    detail TEXT,
    next_ms INTEGER -- when it is published again; null: never (answered, undirected, or the receiver cannot answer)
) STRICT;

-- Queued messages in sequence, and the number of failed ones. Published and receipted rows are not in it. For the other states in
-- a list of more than two values SQLite would make a table of them for each row that it writes.
CREATE INDEX outbox_open ON outbox (state, seq, expires_at) WHERE state NOT IN ('published', 'receipted');
-- The next retry.
CREATE INDEX outbox_due ON outbox (next_ms) WHERE next_ms IS NOT NULL;

CREATE TABLE quarantine (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    received_ms INTEGER NOT NULL,
    subject TEXT NOT NULL,
    message_id TEXT NOT NULL,
    sender TEXT NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    size INTEGER NOT NULL, -- bytes as received
    raw BLOB NOT NULL -- the first bytes
) STRICT;

-- One row for each foreign message that crossed the bridge, with the envelope that carried it. It is deleted with that
-- envelope.
CREATE TABLE bridge_messages (
    seq INTEGER NOT NULL REFERENCES log (seq) ON DELETE CASCADE,
    format TEXT NOT NULL,
    direction TEXT NOT NULL, -- out: submitted by our agent; in: received
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    scope TEXT NOT NULL,
    foreign_id TEXT,
    native INTEGER NOT NULL, -- 1: made from an envelope that carried no foreign message
    message BLOB, -- JSON; null: it is in the envelope
    PRIMARY KEY (seq, format)
) STRICT, WITHOUT ROWID;

-- The latest message with a foreign id, in one scope or in all.
CREATE INDEX bridge_messages_id ON bridge_messages (foreign_id, format, seq) WHERE foreign_id IS NOT NULL;
-- The latest message of a scope.
CREATE INDEX bridge_messages_scope ON bridge_messages (scope, format, seq);

-- The work `assigned` ends when the works `next` of all its rows have ended (null: our agent began the chain, and its end
-- goes to the user). Retention may remove the work of a branch that ended before the others: its outcome stays.
CREATE TABLE follow_ups (
    id INTEGER PRIMARY KEY, -- ascending in the order of opening
    next INTEGER UNIQUE REFERENCES works (id) ON DELETE SET NULL,
    assigned INTEGER REFERENCES works (id) ON DELETE CASCADE,
    chain TEXT, -- without `assigned`: what the branches of one chain have in common
    question TEXT, -- id of the envelope by which `next` asks what `assigned` was made to ask; null: no question is open
    outcome BLOB -- null: `next` is open; empty: `assigned` has ended; else how `next` ended, as JSON
) STRICT;

-- The branches of an assigned work, and the cascade from a work that retention removes.
CREATE INDEX follow_ups_assigned ON follow_ups (assigned, id) WHERE assigned IS NOT NULL;
-- The branches of a chain that our agent began.
CREATE INDEX follow_ups_chain ON follow_ups (chain, id) WHERE chain IS NOT NULL;
-- Works whose end is awaited.
CREATE INDEX follow_ups_open ON follow_ups (next) WHERE outcome IS NULL;

-- Sequences by name: `out:<format>` is the last acknowledged by the agent, `follower` the last handled by the follower.
CREATE TABLE bridge_positions (
    name TEXT NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The logs of the formats. Rows outlive their envelopes; each log has its own bounds.
CREATE TABLE bridge_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    format TEXT NOT NULL,
    seq INTEGER NOT NULL, -- of the envelope; 0: no envelope was sent
    direction TEXT NOT NULL,
    message_id TEXT, -- the foreign id
    at_ms INTEGER NOT NULL, -- when it crossed the bridge
    waits INTEGER, -- seconds in which the message has to be answered; null: it awaits no answer
    due_ms INTEGER, -- when it expires unanswered
    unwritten INTEGER NOT NULL, -- 1: not yet appended to a log file
    size INTEGER NOT NULL, -- bytes of the record
    record BLOB NOT NULL -- JSON
) STRICT;

-- The log of one format in order, and its oldest row.
CREATE INDEX bridge_log_format ON bridge_log (format, id);
-- Whether an envelope has a row.
CREATE INDEX bridge_log_seq ON bridge_log (seq, format) WHERE seq > 0;
-- The row of an answered message.
CREATE INDEX bridge_log_message ON bridge_log (message_id, format) WHERE message_id IS NOT NULL;
-- The next message that expires.
CREATE INDEX bridge_log_due ON bridge_log (due_ms) WHERE due_ms IS NOT NULL;
-- Rows to be appended to files.
CREATE INDEX bridge_log_unwritten ON bridge_log (id) WHERE unwritten = 1;

-- Rows and bytes of each log: checking its bounds needs no count.
CREATE TABLE bridge_log_sizes (
    format TEXT NOT NULL PRIMARY KEY,
    row_count INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Runs of chains.
CREATE TABLE chain_runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL, -- increases with every change; watchers resume by it
    channel TEXT NOT NULL,
    step INTEGER NOT NULL, -- the number of the last visit
    node TEXT NOT NULL, -- that asks, else visited last
    max_steps INTEGER NOT NULL,
    error TEXT,
    question TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    chain BLOB NOT NULL, -- the file as JSON
    input BLOB NOT NULL
) STRICT;

-- Runs in progress.
CREATE INDEX chain_runs_open ON chain_runs (state) WHERE state IN ('running', 'waiting');
-- The list, latest change first; the oldest runs, which are removed first.
CREATE INDEX chain_runs_recent ON chain_runs (updated_ms);

CREATE TABLE chain_steps (
    run_id TEXT NOT NULL REFERENCES chain_runs (run_id) ON DELETE CASCADE,
    step INTEGER NOT NULL,
    node TEXT NOT NULL,
    branch TEXT NOT NULL, -- its first node
    previous INTEGER, -- the visit whose response is `response`; null: none
    peer TEXT, -- null: no peer had the capability yet
    work_id TEXT,
    seen_seq INTEGER NOT NULL, -- last_seq of the work when it was last checked
    due_ms INTEGER, -- when the node, or the answer to its question, is too late
    retries INTEGER NOT NULL, -- works that were refused as busy; each is followed by another one
    open_ms INTEGER, -- when the next one is opened; null: its work is open, or a peer is awaited
    question_seq INTEGER, -- the envelope with its question, which is in the inbox; null: it asks nothing
    work_state TEXT NOT NULL,
    message TEXT,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    work BLOB, -- the fields that conditions read
    response BLOB, -- only of the latest visit of each node
    PRIMARY KEY (run_id, step)
) STRICT;

-- Visits in progress. A run that has ended has none.
CREATE INDEX chain_steps_open ON chain_steps (run_id, step) WHERE ended_ms IS NULL;

-- Whether a work belongs to a run of a chain. The bridge asks this for each envelope that it may deliver.
CREATE INDEX chain_steps_work ON chain_steps (work_id) WHERE work_id IS NOT NULL;

-- Envelopes by which this daemon ended its own work agent after a deadline. The agent did not request them and receives
-- no message about them, so the bridge delivers them like received ones.
CREATE TABLE own_terminal_messages (
    seq INTEGER NOT NULL PRIMARY KEY REFERENCES log (seq) ON DELETE CASCADE
) STRICT;

-- The ledger: one entry for each commit, with a hash over the previous entry and its own contents (docs/audit.md).
CREATE TABLE ledger (
    n INTEGER PRIMARY KEY, -- number of the commit: 1, 2, 3 …
    at_ms INTEGER NOT NULL,
    last_seq INTEGER NOT NULL, -- the last sequence that an envelope was given
    content BLOB, -- SHA-256 over the records of its envelopes; NULL: none
    events BLOB, -- JSON array of its other events; NULL: none
    removed BLOB, -- records of its envelopes that retention removed, while others of it are still stored; else NULL
    hash BLOB NOT NULL -- SHA-256
) STRICT;

-- Trust rules made while the daemon runs (docs/trust.md). Those of the configuration are not stored.
CREATE TABLE trust_rules (
    rule TEXT NOT NULL CHECK (rule IN ('pin', 'allow', 'deny', 'may_open_work', 'may_talk', 'admit')),
    subject TEXT NOT NULL, -- the nickname of a pin, the channel of may_…, else empty
    who TEXT NOT NULL, -- a key id; of may_… also a peer id, * or *@*; of admit a peer id
    origin TEXT NOT NULL CHECK (origin IN ('operator', 'first_use', 'addressed')),
    since_ms INTEGER NOT NULL,
    used_ms INTEGER, -- when a pin of first use was last used
    PRIMARY KEY (rule, subject, who)
) STRICT, WITHOUT ROWID;

-- One key for each nickname.
CREATE UNIQUE INDEX trust_pins ON trust_rules (subject) WHERE rule = 'pin';

-- The peer ids of this daemon, current and former. A new key changes the peer id (spec section 8).
CREATE TABLE identities (
    peer_id TEXT NOT NULL PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    retired_ms INTEGER -- null: the current id, or one with open works
) STRICT, WITHOUT ROWID;
