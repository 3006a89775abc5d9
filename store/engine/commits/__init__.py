"""Where COMMITs run, and the checkpoints of the WAL."""
