"""A worker that tries again while the server of its model is away; any other error fails the work at once."""

import os
from http.client import HTTPConnection

from aghbus.client import Job, Retry, Worker

worker = Worker()
model = os.environ.get("MODEL", "localhost:8080")


@worker.capability("text.translate", retry=Retry(attempts=4, delay=1, on=(ConnectionError, TimeoutError)))
def translate(job: Job) -> dict[str, object]:
    server = HTTPConnection(model, timeout=60)
    server.request("POST", "/translate", job.text.encode())
    return {"text": server.getresponse().read().decode(), "attempt": job.attempt}


if __name__ == "__main__":
    worker.run()
