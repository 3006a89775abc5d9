-- The audit log: one row for each thing that happened, each with a hash over the row before it and its own contents
-- (docs/audit.md). A row is read as a whole or not at all, so its columns are one JSON array: a third of the cost of fourteen.

CREATE TABLE audit (
    n INTEGER PRIMARY KEY, -- 1, 2, 3 … without a gap
    line BLOB NOT NULL, -- what is hashed, as text
    hash BLOB NOT NULL -- SHA-256
) STRICT;

-- The newest row, and the newest that retention has removed: NUMBER:HASH. In a table whose page every commit writes anyway.
INSERT INTO meta (key, value) VALUES ('audit_head', '0:' || hex(zeroblob(32))), ('audit_pruned', '0:' || hex(zeroblob(32)));
