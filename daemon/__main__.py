"""`python -m aghbus.daemon` is `aghd`."""

import sys

from aghbus.daemon.main import entry

if __name__ == "__main__":
    sys.exit(entry())
