"""The console: a page for a browser on this machine, and the listener that serves it (docs/console.md)."""
