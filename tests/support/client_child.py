"""A worker process for crash tests: asks a question in each job, appends its effect to a file, and may kill itself.

Arguments: the socket, the file, the lease in seconds, before which call of the daemon it dies (0: never), and the text of the
only work that it takes (empty: all).
"""

import json
import os
import signal
import sys

from aghbus.client import Client, Endpoint
from aghbus.client.core.threads import Threads
from aghbus.client.http import Connection
from aghbus.protocol.api.messages import Message


class Deadly(Threads):
    """The runtime of a client that is killed before its n-th call, each of which makes a connection."""

    def __init__(self, endpoint: Endpoint, left: int) -> None:
        super().__init__(endpoint)
        self._left = left

    def kept(self) -> None:
        """None is kept."""

    async def connect(self, timeout: float) -> Connection:
        """A connection, or the end."""
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().connect(timeout)


def main(path: str, effects: str, lease: str, dies: str, only: str) -> None:
    """Work without end."""
    client = Client(Endpoint(path=path))

    def wanted(message: Message) -> bool:
        return only in ("", json.loads(bytes(message.envelope))["body"]["text"])

    client.core.runtime = Deadly(client.core.endpoint, int(dies))
    for job in client.jobs("test.run", accept=wanted, lease=float(lease)):
        with job:
            answer = job.ask(f"{job.text}?")
            with open(effects, "a", encoding="ascii") as file:  # noqa: PTH123
                file.write(f"{job.work_id} {job.attempt}\n")
            job.complete(result={"answer": answer, "attempt": job.attempt})


if __name__ == "__main__":
    main(*sys.argv[1:])
