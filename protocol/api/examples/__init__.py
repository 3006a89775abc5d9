"""One example for each operation of the local API (`table`)."""
