"""Clients, jobs and workers: see docs/client.md."""
