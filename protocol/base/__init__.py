"""Small pure helpers without knowledge of the protocol."""
