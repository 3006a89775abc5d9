"""Temporary daemons for `aghctl demo` and `aghctl bench`."""
