-- Whether a work belongs to a run of a chain: the bridge asks for each envelope that it may hand out.
CREATE INDEX chain_steps_work ON chain_steps (work_id) WHERE work_id IS NOT NULL;
