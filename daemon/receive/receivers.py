"""The protocol's view of us, for messages to each of our peer ids."""

from functools import partial

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.receive import ReceiptTarget, Receiver
from aghbus.protocol.agh.trust.trust import Verifier
from aghbus.store.engine.transaction import Transaction


class Receivers:
    """Makes the receiver of messages to one of our peer ids, as of now."""

    def __init__(
        self, identity: Identity, settings: LiveSettings, clock: Clock, trust: LivePolicy, restored: Restored | None
    ) -> None:
        """`restored` is the epoch of the store, if it was restored."""
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._trust = trust
        self._restored = restored

    def of(self, own_id: str, verifier: Verifier, tx: Transaction | None = None) -> Receiver:
        """The protocol's view of us as `own_id`; as our present id, if that one has retired meanwhile or is not ours.

        With `tx` it knows which envelopes were processed.
        """
        identity, settings = self._identity, self._settings.current
        present = own_id == identity.self_id or own_id not in identity.signers
        if present:
            own_id = identity.self_id
        view = Receiver(
            self_id=own_id,
            now=self._clock.millis() // 1000,
            mint=self._clock.mint,
            channels=identity.joined,
            observe=settings.observe,
            receipt_ttl=settings.defaults.directed_ttl,
            verifier=verifier,
            policy=self._trust.now,
            signer=identity.signers[own_id],
            successor=None if present else identity.self_id,
            restored=self._restored,
        )
        return (
            view
            if tx is None
            else msgspec.structs.replace(
                view, processed=partial(_is_processed, tx), predecessor=partial(_predecessor, tx, own_id)
            )
        )


def _predecessor(tx: Transaction, own_id: str, target: ReceiptTarget) -> Predecessor | None:
    return tx.memory.streams.predecessor((target.workspace_id, target.channel, own_id, target.sender, target.container))


def _is_processed(tx: Transaction, workspace_id: str, sender: str, message_id: str) -> bool:
    return tx.memory.log.ids.dedup_key(workspace_id, sender, message_id) in tx.memory.dedup.keys
