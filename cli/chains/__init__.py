"""chains: see docs/architecture.md."""
