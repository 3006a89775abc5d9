-- Envelopes by which this daemon ended work of its own agent because nobody answered: the agent did not ask for them, and no
-- message that arrived tells it. The bridge hands them out like what arrives.
CREATE TABLE own_ends (
    seq INTEGER NOT NULL PRIMARY KEY REFERENCES envelopes (seq) ON DELETE CASCADE
) STRICT;
