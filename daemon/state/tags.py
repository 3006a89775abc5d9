"""Authentication tags between this daemon and peers with keys (protocol/agh/trust/tags.py), and which contacts send them.

A tag decides about lanes only (daemon/state/rate_limits.py): without one a message is verified, and taken, as always.
"""

from typing import Final

from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.processing_budget import claimed_public_key
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.trust.keys import PublicKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.protocol.agh.trust.tags import is_tag_of, tag_of

_PEERS: Final = (
    20_000  # pairs whose key is kept, and senders of tags: twice the contacts that are kept; then all are dropped
)


class Tags:
    """Makes and checks tags. A key takes a tenth of a millisecond at the first message of a pair, a tag some microseconds."""

    def __init__(self, identity: Identity, trust: LivePolicy, presence: PresenceTable) -> None:
        self._identity = identity
        self._trust = trust
        self._presence = presence
        self._keys: dict[
            tuple[str, str], bytes
        ] = {}  # by our handle and the peer's; empty when the two cannot agree on one
        self._senders: dict[str, bool] = {}  # who has sent an authentic tag; False: with a wrong signature

    def make(self, sender: str, to: str | None, raw: bytes) -> str:
        """The tag of a message of ours; empty unless `to` is a peer of this project whose key is known, and `sender` has one."""
        signer = self._identity.signers.get(sender)
        if to is None or signer is None or not self._presence.acknowledges(to):
            return ""
        key = self._keys.get((sender, to))
        if key is None:
            key = self._derive(signer, to, self._trust.public_key_of(to))
        return tag_of(key, raw) if key else ""

    def is_authentic(self, sender: str, raw: bytes, tag: str) -> bool:
        """Whether the contact `sender` has made `tag` for `raw`. Then nobody else has forged its signature."""
        if self._senders.get(sender, True):
            for own_id, signer in self._identity.signers.items():
                key = self._keys.get((own_id, sender))
                if key is None and signer is not None:
                    key = self._derive(signer, sender, self._claimed(sender, raw))
                if key and is_tag_of(tag, key, raw):
                    return True
        return False

    def sends(self, sender: str) -> bool:
        """Whether an authentic tag of `sender` was seen in this run: its directed messages have one."""
        return self._senders.get(sender, False)

    def learn(self, sender: str, raw: bytes, tag: str, *, verified: bool) -> None:
        """The signature of a message with a tag was verified, or is wrong. The tags of a peer that signs wrongly under an authentic
        one do not count any more: each would make us verify a signature without a budget."""
        if self._senders.get(sender) is not verified and self.is_authentic(sender, raw, tag):
            if len(self._senders) >= _PEERS:
                self._senders.clear()
            self._senders[sender] = verified

    def _derive(self, signer: EnvelopeSigner, peer: str, public: PublicKey | None) -> bytes:
        if public is None:
            return b""
        if len(self._keys) >= _PEERS:
            self._keys.clear()
        key = self._keys[signer.handle, peer] = signer.pair_key(public, peer) or b""
        return key

    def _claimed(self, sender: str, raw: bytes) -> PublicKey | None:
        """The public key in the proof, if it is that of the handle. Only for admitted peers: anybody can make others."""
        public = claimed_public_key(raw) if self._trust.admits(sender) else None
        return public if public is not None and sender.partition("@")[2] == public.fingerprint else None
