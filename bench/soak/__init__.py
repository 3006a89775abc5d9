"""Daemons under steady load for minutes or hours: `python -m bench.soak --minutes 10`."""
