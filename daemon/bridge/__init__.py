"""The bridge: agents that use a foreign message format take part through it (docs/adapters/)."""
