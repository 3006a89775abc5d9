"""What `aghctl demo` and `aghctl bench` do with temporary daemons (aghbus.testing.sandbox)."""
