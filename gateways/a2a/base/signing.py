"""The key of a gateway: it signs Agent Cards and push notifications. It is made at the first start, in the state folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import jwt
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import create_agent_card_signer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aghbus.client import UsageError
from aghbus.gateways.a2a.base.convert import as_json, as_message
from aghbus.host.files import make_private_folder
from aghbus.host.key_files import KeyFileError, generate_key, read_key, write_key
from aghbus.protocol.agh.trust.keys import encode_base64url, fingerprint
from aghbus.protocol.formats.a2a.parts import Json

FILE: Final = "card-key.pem"
ALGORITHM: Final = "EdDSA"
TOKEN_SECONDS: Final = 300


class Signing:
    """Signs with the key in a folder. `keys_url` is where its public half is published."""

    def __init__(self, folder: str, keys_url: str) -> None:
        """Raises UsageError for a folder or a file that cannot be used."""
        path = Path(folder) / FILE
        try:
            make_private_folder(folder)
            if not path.exists():
                write_key(path, generate_key())
            seed = read_key(path).reveal_seed()
        except OSError as error:
            raise UsageError(f"the folder {folder} cannot be used: {error.strerror}") from None
        except KeyFileError as error:
            raise UsageError(str(error), error.hint) from None
        public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
        identity, about = (
            fingerprint(public),
            {"kty": "OKP", "crv": "Ed25519", "x": encode_base64url(public), "alg": ALGORITHM},
        )
        self._head = {"kid": identity}
        self._key = jwt.PyJWK({**about, "d": encode_base64url(seed)})
        self.public: Json = {"keys": [{**about, **self._head, "use": "sig"}]}
        self._sign = create_agent_card_signer(
            self._key, {"kid": identity, "alg": ALGORITHM, "jku": keys_url, "typ": "JOSE"}
        )

    def card(self, card: Json) -> Json:
        """A card with its signature."""
        return as_json(self._sign(as_message(card, pb.AgentCard)))

    def token(self, issuer: str, audience: str, task_id: str, digest: str) -> str:
        """A JWT that says who sends a notification of a task, to whom, and the SHA-256 of its body."""
        now = int(time.time())
        claims = {
            "iss": issuer,
            "aud": audience,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "taskId": task_id,
            "request_body_sha256": digest,
        }
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers=self._head)
