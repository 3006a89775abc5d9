"""What all of the gateway stands on: the daemon, errors, files, keys and counters."""
