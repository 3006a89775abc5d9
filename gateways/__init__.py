"""Gateways: processes that connect other agent protocols to the bus, on the client library."""
