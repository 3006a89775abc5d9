"""A worker process whose jobs go wrong as their text says, attempt by attempt: `["release", "die"]` is done at the third.

Arguments: the socket, and the lease in seconds.
"""

import os
import signal
import sys
from contextlib import suppress

from aghbus.client import Client, ClientError, Endpoint, Job, JobCanceled, Retry, Worker

PAUSE = 0.3
"""Seconds until a job is ready again that was released, or is retried."""


def main(path: str, lease: str) -> None:
    """Work without end."""
    endpoint = Endpoint(path=path)
    worker, other = Worker(endpoint, lease=float(lease)), Client(endpoint)

    @worker.capability("test.run", retry=Retry(attempts=9, delay=PAUSE, on=(ConnectionError,), backoff=1.0))
    def handle(job: Job, wrong: list[str]) -> None:
        match wrong[job.attempt - 1 : job.attempt]:
            case ["release"]:
                job.release(delay=PAUSE)
            case ["retry"]:
                raise ConnectionError("not now")
            case ["die"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["lose"]:  # as if the lease had run out
                with suppress(ClientError):  # the daemon was killed meanwhile
                    other.nack(job.message.seq, delay=0)
                raise JobCanceled("another has it")

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
