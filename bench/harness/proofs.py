"""What a signature costs, in a process of its own: `python -m bench.harness.proofs JOB` (JSON), microseconds as JSON.

Jobs, by `do`, each `count` times one after the other in one thread:
- `bare-verify`, `bare-sign`: the Ed25519 operation of `cryptography` alone, over the signed bytes of a say of 614 bytes
- `verify`, `sign`: what the daemon does for an envelope, canonical form and all
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from aghbus.protocol.envelope import parse
from aghbus.protocol.trust_json import canonical_bytes, read_strict
from aghbus.protocol.trust_keys import SIGNATURE_BYTES, SigningKey, decode_base64url
from aghbus.protocol.trust_proof import EnvelopeSigner, sign, verify_envelope
from bench.harness.envelopes import Maker

_KEY: Final = SigningKey(bytes(range(32)))
SIGNER: Final = EnvelopeSigner(_KEY, "flooder")
_SOME: Final = 256  # different envelopes, taken in turn


def bare_verify(makers: list[bytes]) -> Callable[[int], object]:
    """One Ed25519 verification for each call, with a key object that is there already."""
    public = Ed25519PublicKey.from_public_bytes(_KEY.public)
    cases = [_signature_and_message(raw) for raw in makers]
    return lambda number: public.verify(*cases[number % _SOME])


def bare_sign(makers: list[bytes]) -> Callable[[int], object]:
    """One Ed25519 signature for each call."""
    messages = [_signature_and_message(raw)[1] for raw in makers]
    return lambda number: _KEY.sign(messages[number % _SOME])


def verify(makers: list[bytes]) -> Callable[[int], object]:
    """The check of a received envelope that is parsed already."""
    now = int(time.time())
    envelopes = [parse(raw, now) for raw in makers]
    return lambda number: verify_envelope(envelopes[number % _SOME])


def signing(makers: list[bytes]) -> Callable[[int], object]:
    """The proof of an envelope that is built already."""
    documents = [msgspec.json.decode(raw) for raw in makers]
    return lambda number: sign(documents[number % _SOME], _KEY)


def _signature_and_message(raw: bytes) -> tuple[bytes, bytes]:
    received = read_strict(raw)
    signature = decode_base64url(received.value["proof"].pop("sig"), SIGNATURE_BYTES)
    assert signature is not None
    return signature, canonical_bytes(received)


_WAYS: Final = {"bare-verify": bare_verify, "bare-sign": bare_sign, "verify": verify, "sign": signing}


def microseconds(job: dict[str, Any]) -> float:
    """Of one operation, over all of them."""
    maker = Maker("", "nobody", SIGNER)
    operation = _WAYS[job["do"]]([maker.say() for _ in range(_SOME)])
    started = time.perf_counter()
    for number in range(job["count"]):
        operation(number)
    return (time.perf_counter() - started) * 1e6 / job["count"]


if __name__ == "__main__":
    print(json.dumps(microseconds(json.loads(sys.argv[1]))), flush=True)
