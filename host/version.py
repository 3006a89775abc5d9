"""The version of this package. pyproject.toml reads it here; reading the installed metadata costs 30 ms at every start."""

VERSION = "0.1.0"
