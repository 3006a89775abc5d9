"""Copies of a store, and the epoch that begins when one is restored (docs/backup.md)."""
