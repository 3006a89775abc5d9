"""Opens the store PATH, says how many milliseconds that took, and kills itself: `python -m bench.harness.opening PATH`."""

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

from aghbus.store.engine.database import Store


async def main(path: Path) -> None:
    """Opening recovers the write-ahead log and loads the state in memory, while the check of the pages begins."""
    started = time.perf_counter()
    await Store.open(path)
    print(json.dumps((time.perf_counter() - started) * 1000), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # the next one finds the file as this one did


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
