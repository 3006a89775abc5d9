-- Retry of what was published and not answered, and deadlines of works. Times ending in _ms are Unix milliseconds.

-- When it goes out again; null: never (answered, undirected, or the receiver cannot answer).
ALTER TABLE outbox ADD COLUMN next_ms INTEGER;
CREATE INDEX outbox_due ON outbox (next_ms) WHERE next_ms IS NOT NULL;

-- How long a work may wait for acceptance, and between two signs of progress, in milliseconds; null: for ever.
ALTER TABLE works ADD COLUMN accept_ms INTEGER;
ALTER TABLE works ADD COLUMN progress_ms INTEGER;
-- When the deadline that now applies passes.
ALTER TABLE works ADD COLUMN due_ms INTEGER;
CREATE INDEX works_due ON works (due_ms) WHERE due_ms IS NOT NULL;
