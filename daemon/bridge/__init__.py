"""The bridge: agents that speak a foreign message format take part through it (docs/adapters/)."""
