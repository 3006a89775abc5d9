"""discovery: see docs/architecture.md."""
