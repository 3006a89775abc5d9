"""Agent hosts: the relay of the Model Context Protocol between a host and the daemon (docs/mcp.md)."""
