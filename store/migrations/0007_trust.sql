-- Whom we listen to, as decided while the daemon runs (docs/trust.md); what the configuration says is not in here.

CREATE TABLE trust_rules (
    rule TEXT NOT NULL CHECK (rule IN ('pin', 'allow', 'deny', 'may_open_work', 'may_talk')),
    subject TEXT NOT NULL, -- the nickname of a pin, the channel of may_…, else empty
    who TEXT NOT NULL, -- a key id; of may_… also a peer id, * or *@*
    origin TEXT NOT NULL CHECK (origin IN ('operator', 'first_use')),
    since_ms INTEGER NOT NULL,
    PRIMARY KEY (rule, subject, who)
) STRICT, WITHOUT ROWID;

-- One key for each nickname.
CREATE UNIQUE INDEX trust_pins ON trust_rules (subject) WHERE rule = 'pin';
