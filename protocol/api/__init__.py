"""The local API as plain data: the bodies of requests and responses, and the parameters of queries (docs/api.md).

One module a topic. The docstring of each type describes its fields, one a line as `name: description`; the OpenAPI document
takes them from there. Times ending in `_ms` are Unix milliseconds, others Unix seconds. `seq` is the store's local sequence:
it only grows, and streams resume by it. Text in these values may come from untrusted peers: escape it before a terminal
shows it.
"""
