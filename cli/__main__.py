"""`python -m aghbus.cli`: the same as `aghctl`."""

import sys

from aghbus.cli.main import entry

if __name__ == "__main__":
    sys.exit(entry())
