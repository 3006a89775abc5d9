"""Durable runs of chains: each visit of a node is one work (docs/adapters/chains.md)."""
