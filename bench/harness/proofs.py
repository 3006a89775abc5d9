"""What a signature costs, in a process of its own: `python -m bench.harness.proofs JOB` (JSON), microseconds as JSON.

Jobs, by `do`, each `count` times one after the other in one thread:
- `bare-verify`, `bare-sign`: the Ed25519 operation of `cryptography` alone, over the signed bytes of a say of 614 bytes
- `verify`, `sign`: what the daemon does for an envelope, canonical form and all
- `inline`, `ahead`: batches of 256 envelopes verified one by one on an event loop, or by the threads of the daemon
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from aghbus.daemon.verification import Verification
from aghbus.protocol.envelope import parse
from aghbus.protocol.trust_json import canonical_bytes, read_strict
from aghbus.protocol.trust_keys import SIGNATURE_BYTES, SigningKey, decode_base64url
from aghbus.protocol.trust_proof import EnvelopeSigner, sign, verify_envelope
from bench.harness.envelopes import Maker

_KEY: Final = SigningKey(bytes(range(32)))
SIGNER: Final = EnvelopeSigner(_KEY, "flooder")
_SOME: Final = 256  # different envelopes, taken in turn


def bare_verify(raws: list[bytes]) -> Callable[[int], object]:
    """One Ed25519 verification for each call, with a key object that is there already."""
    public = Ed25519PublicKey.from_public_bytes(_KEY.public)
    cases = [_signature_and_message(raw) for raw in raws]
    return lambda number: public.verify(*cases[number % _SOME])


def bare_sign(raws: list[bytes]) -> Callable[[int], object]:
    """One Ed25519 signature for each call."""
    messages = [_signature_and_message(raw)[1] for raw in raws]
    return lambda number: _KEY.sign(messages[number % _SOME])


def verify(raws: list[bytes]) -> Callable[[int], object]:
    """The check of a received envelope that is parsed already."""
    now = int(time.time())
    envelopes = [parse(raw, now) for raw in raws]
    return lambda number: verify_envelope(envelopes[number % _SOME])


def signing(raws: list[bytes]) -> Callable[[int], object]:
    """The proof of an envelope that is built already."""
    documents = [msgspec.json.decode(raw) for raw in raws]
    return lambda number: sign(documents[number % _SOME], _KEY)


def _signature_and_message(raw: bytes) -> tuple[bytes, bytes]:
    received = read_strict(raw)
    signature = decode_base64url(received.value["proof"].pop("sig"), SIGNATURE_BYTES)
    assert signature is not None
    return signature, canonical_bytes(received)


async def batches(count: int, *, ahead: bool) -> float:
    """Microseconds of each of `count` envelopes, which come in batches."""
    maker, now = Maker("", "nobody", SIGNER), int(time.time())
    envelopes = [parse(maker.say(), now) for _ in range(_SOME)]
    verification = Verification(verify_envelope)
    rounds = max(1, count // _SOME)
    started = time.perf_counter()
    for _ in range(rounds):
        if ahead:
            verification.begin(envelopes)
            await verification.ready(envelopes)
        for envelope in envelopes:
            verification.verify(envelope)
        verification.forget(envelopes)
    took = time.perf_counter() - started
    verification.close()
    return took * 1e6 / (rounds * _SOME)


_WAYS: Final = {"bare-verify": bare_verify, "bare-sign": bare_sign, "verify": verify, "sign": signing}


def microseconds(job: dict[str, Any]) -> float:
    """Of one operation, over all of them."""
    if job["do"] in ("inline", "ahead"):
        return asyncio.run(batches(job["count"], ahead=job["do"] == "ahead"))
    maker = Maker("", "nobody", SIGNER)
    operation = _WAYS[job["do"]]([maker.say() for _ in range(_SOME)])
    started = time.perf_counter()
    for number in range(job["count"]):
        operation(number)
    return (time.perf_counter() - started) * 1e6 / job["count"]


if __name__ == "__main__":
    print(json.dumps(microseconds(json.loads(sys.argv[1]))), flush=True)
