"""Chains: a sequence of agents, each chosen by the previous response (seed 004, section 4)."""
