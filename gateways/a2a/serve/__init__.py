"""The listeners of the gateway and the operations of A2A."""
