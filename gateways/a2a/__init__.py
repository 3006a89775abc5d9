"""A2A: the bus for A2A clients, and A2A agents as peers (docs/adapters/a2a.md)."""
