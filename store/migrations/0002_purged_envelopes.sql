-- What the answer to a repetition needs of an envelope that was removed, of those whose ids are remembered.
ALTER TABLE remembered_ids ADD COLUMN digest BLOB; -- SHA-256 of the envelope; null: it was never in the log
ALTER TABLE remembered_ids ADD COLUMN refused TEXT; -- the reason for which the lifecycle refused it; null: it was taken
