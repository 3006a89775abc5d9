"""The worker behind `aghctl serve` and `aghctl bridge FORMAT -- COMMAND` (docs/serve.md)."""
