-- The bridge to foreign formats: which envelopes carried foreign messages, which work follows which, and the formats' logs.

-- One row for each message of a format that crossed, with the envelope that carried it: it goes when that goes.
CREATE TABLE bridge_messages (
    seq INTEGER NOT NULL REFERENCES envelopes (seq) ON DELETE CASCADE,
    format TEXT NOT NULL,
    direction TEXT NOT NULL, -- out: our agent handed it over; in: it arrived
    workspace_id TEXT NOT NULL,
    channel TEXT NOT NULL,
    scope TEXT NOT NULL,
    foreign_id TEXT,
    native INTEGER NOT NULL, -- made from an envelope that carried none
    message BLOB, -- JSON; null: the envelope carries it
    PRIMARY KEY (seq, format)
) STRICT, WITHOUT ROWID;

-- The latest message with an id of its own, in a scope or in any.
CREATE INDEX bridge_messages_id ON bridge_messages (foreign_id, format, seq) WHERE foreign_id IS NOT NULL;
-- The latest message of a scope.
CREATE INDEX bridge_messages_scope ON bridge_messages (scope, format, seq);

-- The work `in_hand` closes with the end of the work `next` (null: a chain begins there, and only its end is looked at). The
-- row goes when that has happened, or with either work.
CREATE TABLE bridge_links (
    next INTEGER NOT NULL PRIMARY KEY REFERENCES works (id) ON DELETE CASCADE,
    in_hand INTEGER REFERENCES works (id) ON DELETE CASCADE
) STRICT;

-- Retention removes works, and looks here for each.
CREATE INDEX bridge_links_in_hand ON bridge_links (in_hand) WHERE in_hand IS NOT NULL;

-- Sequences by name: `out:<format>` is what the agent acknowledged, `follower` what the follower has dealt with.
CREATE TABLE bridge_positions (
    name TEXT NOT NULL PRIMARY KEY,
    seq INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The formats' own logs. They outlive their envelopes, within bounds of their own.
CREATE TABLE bridge_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    format TEXT NOT NULL,
    seq INTEGER NOT NULL, -- of the envelope; 0 where nothing was sent
    direction TEXT NOT NULL,
    message_id TEXT, -- the message's own id
    at_ms INTEGER NOT NULL, -- when it crossed, Unix milliseconds
    due_ms INTEGER, -- when an unanswered message runs out, Unix milliseconds
    unwritten INTEGER NOT NULL, -- 1: waits to be appended to a log file
    size INTEGER NOT NULL, -- bytes of the record
    record BLOB NOT NULL -- JSON
) STRICT;

-- The log of one format in order, and its oldest row.
CREATE INDEX bridge_log_format ON bridge_log (format, id);
-- Whether an envelope has its row.
CREATE INDEX bridge_log_seq ON bridge_log (seq, format) WHERE seq > 0;
-- The row of the message that another one answers.
CREATE INDEX bridge_log_message ON bridge_log (message_id, format) WHERE message_id IS NOT NULL;
-- The next message that runs out.
CREATE INDEX bridge_log_due ON bridge_log (due_ms) WHERE due_ms IS NOT NULL;
-- What has to be appended to files.
CREATE INDEX bridge_log_unwritten ON bridge_log (id) WHERE unwritten = 1;

-- Rows and bytes of each log, so that its bounds cost no count.
CREATE TABLE bridge_log_sizes (
    format TEXT NOT NULL PRIMARY KEY,
    row_count INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
