"""The log: every envelope in the order of the commits, its dictionaries, and what is kept of it in memory."""
