"""The Model Context Protocol for agent hosts (docs/mcp.md)."""
