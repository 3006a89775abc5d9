"""nats: see docs/architecture.md."""
