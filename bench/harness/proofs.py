"""The cost of a signature, in its own process: `python -m bench.harness.proofs JOB` (JSON), microseconds by name as JSON.

Each is the mean of `count` operations, in blocks that take turns:
- `bare verify`, `bare sign`: the Ed25519 operation of `cryptography` alone, in one thread, over the signed bytes of a say
- `verify`, `sign`: what the daemon does for an envelope, canonical form and all, in one thread
- `inline`, `ahead`: what the intake waits for a batch, verified on the event loop or by the daemon's threads
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.trust.canonical_json import canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import SIGNATURE_BYTES, SigningKey, decode_base64url
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, sign, verify_envelope
from bench.harness.envelopes import EnvelopeMaker

_KEY: Final = SigningKey(bytes(range(32)))
SIGNER: Final = EnvelopeSigner(_KEY, "flooder")
_BLOCK: Final = 256  # different envelopes, one block: a batch of the daemon's


def _signature_and_message(raw: bytes) -> tuple[bytes, bytes]:
    received = read_strict(raw)
    signature = decode_base64url(received.value["proof"].pop("sig"), SIGNATURE_BYTES)
    assert signature is not None
    return signature, canonical_bytes(received)


def ways(verification: SignaturePool) -> dict[str, Callable[[], Awaitable[None]]]:
    """One block of each operation, with everything prepared that is not part of it."""
    maker, now = EnvelopeMaker("", "nobody", SIGNER), int(time.time())
    raws = [maker.say() for _ in range(_BLOCK)]
    envelopes, documents = [parse(raw, now) for raw in raws], [msgspec.json.decode(raw) for raw in raws]
    signed = [_signature_and_message(raw) for raw in raws]
    public = Ed25519PublicKey.from_public_bytes(_KEY.public)

    async def bare_verify() -> None:
        for signature, message in signed:
            public.verify(signature, message)

    async def bare_sign() -> None:
        for _, message in signed:
            _KEY.sign(message)

    async def verify() -> None:
        for envelope in envelopes:
            verify_envelope(envelope)

    async def signing() -> None:
        for document in documents:
            sign(document, _KEY)

    async def inline() -> None:
        for envelope in envelopes:
            verification.verify(envelope)

    async def ahead() -> None:
        verification.begin(envelopes)
        await verification.ready(envelopes)
        await inline()
        verification.forget(envelopes)

    return {
        "bare verify": bare_verify,
        "verify": verify,
        "bare sign": bare_sign,
        "sign": signing,
        "inline": inline,
        "ahead": ahead,
    }


async def microseconds(count: int) -> dict[str, float]:
    """Of one operation, by name."""
    verification = SignaturePool(verify_envelope)
    blocks, taken = max(1, count // _BLOCK), Counter[str]()
    for name, way in list(ways(verification).items()) * blocks:
        started = time.perf_counter_ns()
        await way()
        taken[name] += time.perf_counter_ns() - started
    verification.close()
    return {name: nanoseconds / 1000 / (blocks * _BLOCK) for name, nanoseconds in taken.items()}


def main() -> None:
    """Do the one job that the command line has."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(microseconds(job["count"]))), flush=True)


if __name__ == "__main__":
    main()
