-- Runs of chains. Times ending in _ms are Unix milliseconds.

CREATE TABLE chain_runs (
    run_id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    version INTEGER NOT NULL, -- grows with every change: watchers resume by it
    channel TEXT NOT NULL,
    step INTEGER NOT NULL, -- the number of the last visit
    node TEXT NOT NULL,
    max_steps INTEGER NOT NULL,
    seen_seq INTEGER NOT NULL, -- how far the current work has been followed: its last_seq when it was looked at
    due_ms INTEGER, -- when the node's time is up; null: never, also while an answer is awaited
    error TEXT,
    question TEXT,
    created_ms INTEGER NOT NULL,
    updated_ms INTEGER NOT NULL,
    chain BLOB NOT NULL, -- the file as JSON
    input BLOB NOT NULL
) STRICT;

-- What is in progress.
CREATE INDEX chain_runs_open ON chain_runs (state) WHERE state IN ('running', 'waiting');
-- The list, latest change first; the oldest, to be forgotten.
CREATE INDEX chain_runs_recent ON chain_runs (updated_ms);

CREATE TABLE chain_steps (
    run_id TEXT NOT NULL REFERENCES chain_runs (run_id) ON DELETE CASCADE,
    step INTEGER NOT NULL,
    node TEXT NOT NULL,
    peer TEXT, -- null: nobody had the capability yet
    work_id TEXT,
    work_state TEXT NOT NULL,
    message TEXT,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    work BLOB, -- what conditions see of it
    response BLOB, -- of the latest visit of each node
    PRIMARY KEY (run_id, step)
) STRICT;
