"""The local API as plain data: requests, responses and parameters, each field with its description (docs/api.md)."""
