"""An agent's side of the API in its own process: `python -m bench.harness.caller JOB` (JSON), result as JSON.

Jobs, by `do`:
- `send`:  says to `to` over `connections` at a time, until a subscriber on the bus has them all; messages a second
- `whois`: milliseconds of `POST /v1/whois`, one after the other; the first tenth warms up
- `drain`: messages leased from the inbox and acked, over `connections` at a time; messages a second
"""

import json
import selectors
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from aghbus.protocol.agh.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.wire import RawApi, RawNats, ready, request_bytes

WAIT: Final = 60  # seconds that a consumer waits for a message that is on its way
_TEXT: Final = "x" * 320  # gives an envelope of about 614 bytes


def send(job: dict[str, Any]) -> float:
    """Messages a second, from the first request until the last is on the bus."""
    ask = {"kind": "say", "to": job["to"], "thread_id": "thread_bench", "body": {"text": _TEXT}}
    request, count = request_bytes("POST", "/v1/messages", ask), job["count"]
    asked = seen = 0

    def say(api: RawApi) -> None:
        nonlocal asked
        if asked < count:
            asked += 1
            api.socket.sendall(request)

    def answered(api: RawApi) -> None:
        if api.receive() is not None:
            say(api)

    def published() -> None:
        nonlocal seen
        seen += len(nats.receive())

    picker, apis = selectors.DefaultSelector(), _connections(job)
    with RawNats(job["nats"]) as nats:
        nats.subscribe(subject_for(WORKSPACE, CHANNEL, job["to"]))
        picker.register(nats.socket, selectors.EVENT_READ, published)
        for api in apis:
            picker.register(api.socket, selectors.EVENT_READ, _bound(answered, api))
        started = time.perf_counter()
        for api in apis:
            say(api)
        while seen < count:
            for act in ready(picker):
                act()
        return float(count / (time.perf_counter() - started))


def whois(job: dict[str, Any]) -> list[float]:
    """Milliseconds of each call."""
    api, warm_up = RawApi(job["socket"]), job["count"] // 10
    request = request_bytes("POST", "/v1/whois", {"query": job["query"], "first": True})
    taken = []
    for _ in range(job["count"] + warm_up):
        started = time.perf_counter()
        api.socket.sendall(request)
        answer = api.answer()
        taken.append((time.perf_counter() - started) * 1000)
        if not answer["peers"]:
            raise RuntimeError("nobody answered")
    return taken[warm_up:]


def drain(job: dict[str, Any]) -> float:
    """Messages a second, from the first lease to the last ack."""
    lease = request_bytes("POST", "/v1/inbox/next", {"wait": WAIT, "concurrent": True})
    leased = acked = 0
    count = job["count"]

    def take(api: RawApi) -> None:
        nonlocal leased
        if leased < count:
            leased += 1
            api.socket.sendall(lease)

    def answered(api: RawApi) -> None:
        nonlocal acked
        if (content := api.receive()) is None:
            return
        answer = json.loads(content)
        if "item" not in answer:
            acked += 1
            take(api)
        elif (item := answer["item"]) is None:
            raise RuntimeError("the inbox is empty")
        else:
            api.send("POST", f"/v1/inbox/{item['seq']}/ack", {"lease": item["lease"]})

    picker, apis = selectors.DefaultSelector(), _connections(job)
    for api in apis:
        picker.register(api.socket, selectors.EVENT_READ, _bound(answered, api))
    started = time.perf_counter()
    for api in apis:
        take(api)
    while acked < count:
        for act in ready(picker):
            act()
    return float(count / (time.perf_counter() - started))


def _connections(job: dict[str, Any]) -> list[RawApi]:
    return [RawApi(job["socket"]) for _ in range(job["connections"])]


def _bound(act: Callable[[RawApi], None], api: RawApi) -> Callable[[], None]:
    return lambda: act(api)


def main() -> None:
    """Do the one job that the command line has."""
    job = json.loads(sys.argv[1])
    result = {"send": send, "whois": whois, "drain": drain}[job["do"]](job)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
