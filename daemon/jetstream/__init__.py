"""jetstream: see docs/architecture.md."""
