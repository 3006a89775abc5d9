"""Chains: one agent after the other, the next one chosen by what the one before answered (seed 004, section 4)."""
