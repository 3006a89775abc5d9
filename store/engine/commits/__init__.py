"""Where COMMITs run."""
