"""The AGH Network v0 protocol as pure values: bytes in, decisions out. Nothing here waits, reads a clock or opens a file."""
