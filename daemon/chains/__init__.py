"""Durable runs of chains: each visit of a node is one work on the bus (docs/adapters/chains.md)."""
