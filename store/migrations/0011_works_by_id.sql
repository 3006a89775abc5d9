-- A request names a work by its id alone.
CREATE INDEX works_by_id ON works (work_id);
