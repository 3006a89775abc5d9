"""The calls of the API, once for callers that block and for asyncio: see docs/client.md."""
