-- What a repeated envelope is answered after its first copy was removed from the log; null for ids that were never in it.
ALTER TABLE remembered_ids ADD COLUMN digest BLOB; -- SHA-256 of the first copy
ALTER TABLE remembered_ids ADD COLUMN refused TEXT; -- the reason for which it was refused; null: it was taken
