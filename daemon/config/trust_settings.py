"""The settings of trust: our key and the access policy (spec section 8), and the policy object made from them."""

from collections import defaultdict
from typing import Annotated, Final, Literal

import msgspec

from aghbus.daemon.config.layers import Key
from aghbus.daemon.config.value_types import FilePath, Text, Texts, choice
from aghbus.protocol.agh.identifiers import is_key_id
from aghbus.protocol.agh.trust.policy import (
    ChannelRule,
    Mode,
    TrustPolicy,
    identity_of,
    is_sender,
    split_pin,
    split_sender,
)

_SECRET_FILE: Final = FilePath(holds_secret=True)
_KEY_ID: Final = Text("a key id: sha256: and 64 hex digits", is_key_id)
_WHO: Final = Text("a peer id, a handle or a key id, or one of these with /PRINCIPAL", is_sender)
_PIN: Final = Text("NICKNAME=KEY_ID, such as ops=sha256: and 64 hex digits", lambda text: split_pin(text) is not None)
_SENDER: Final = Text(
    "CHANNEL=WHO, where WHO is a peer id, a handle or a key id, one of these with /PRINCIPAL, * (everybody) "
    "or *@* (every verified peer)",
    lambda text: split_sender(text) is not None,
)


class TrustSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Our key and the access policy (docs/trust.md)."""

    key_file: Annotated[
        str | None,
        Key(
            _SECRET_FILE,
            "our private key (PEM); unset: the credential aghbus.key, else identity.pem in the instance's state folder",
        ),
    ] = None
    passphrase_file: Annotated[
        str | None, Key(_SECRET_FILE, "file with the passphrase of an encrypted key; unset: aghbus.passphrase")
    ] = None
    mode: Annotated[
        Mode,
        Key(choice("verify", "require"), "verify: accept unsigned peers too; require: only verified ones", reload=True),
    ] = "verify"
    admit: Annotated[
        Literal["contacts", "all"],
        Key(
            choice("contacts", "all"),
            "contacts: peers that we have admitted or addressed; all: every peer is a contact, on a broker that only we use",
            reload=True,
        ),
    ] = "contacts"
    first_use: Annotated[
        Literal["off", "pin"],
        Key(choice("off", "pin"), "pin: the first verified key with a nickname is pinned to it", reload=True),
    ] = "off"
    allow: Annotated[tuple[str, ...], Key(Texts(_KEY_ID), "accepted keys; none named: every key", reload=True)] = ()
    deny: Annotated[tuple[str, ...], Key(Texts(_WHO), "refused keys and plain names", reload=True)] = ()
    pins: Annotated[tuple[str, ...], Key(Texts(_PIN), "nicknames reserved for one key", reload=True)] = ()
    may_open_work: Annotated[
        tuple[str, ...],
        Key(Texts(_SENDER), "peers that may open work with us, on the channels named here", reload=True),
    ] = ()
    may_talk: Annotated[
        tuple[str, ...], Key(Texts(_SENDER), "other peers that may send, on the channels named here", reload=True)
    ] = ()


def policy_of(trust: TrustSettings) -> TrustPolicy:
    """The policy from the settings."""
    work, talk = _by_channel(trust.may_open_work), _by_channel(trust.may_talk)
    return TrustPolicy(
        mode=trust.mode,
        allow=frozenset(trust.allow),
        deny=frozenset(map(identity_of, trust.deny)),
        pins=dict(filter(None, map(split_pin, trust.pins))),
        channels={
            channel: ChannelRule(work=work.get(channel), talk=talk.get(channel))
            for channel in work.keys() | talk.keys()
        },
    )


def _by_channel(entries: tuple[str, ...]) -> dict[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for channel, who in filter(None, map(split_sender, entries)):
        found[channel].add(who)
    return {channel: frozenset(names) for channel, names in found.items()}
