"""HTTP/1.1 on httptools: listeners, connections, exchanges, event streams (docs/adr/0003-http-server.md)."""
