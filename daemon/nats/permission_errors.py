"""Subjects that the broker's permissions refuse us: without a check a refused subscription would go unnoticed.

A refused subscription stays refused until the next connection. A refused publish is known only when it is tried.
"""

import re
from typing import Final

_SUBSCRIPTION: Final = re.compile(r"permissions violation for subscription to \"?([^\"\s]+)", re.IGNORECASE)
_NOT_NEEDED: Final = "$js.api.stream.purge.obj_"  # the rest of an aborted upload stays for the bucket's age instead
_MAX_SUBJECTS: Final = 16  # kept of each kind
_MAX_SHOWN: Final = 3  # of them in a sentence
_PUBLISH_LIFE: Final = 300.0  # seconds after which a publish that is not tried any more is forgotten


class DeniedSubjects:
    """The refused subjects, from the server's error messages (in lower case, as nats-py passes them on)."""

    def __init__(self, peer_id: str) -> None:
        """`peer_id` is the peer whose permissions they are."""
        self._peer_id = peer_id
        self._subscriptions: dict[str, float] = {}
        self._publishes: dict[str, float] = {}

    @property
    def has_denied_subscriptions(self) -> bool:
        """Whether a subscription of this connection was refused, other than to requests of `nats micro`."""
        return any(not subject.startswith("$srv.") for subject in self._subscriptions)

    def note(self, detail: str, now: float) -> None:
        """The server reported `detail` at monotonic second `now`."""
        found = _SUBSCRIPTION.search(detail)
        known = self._subscriptions if found else self._publishes
        subject = found[1] if found else detail.rpartition(" to ")[2].strip('"')
        if subject.lower().startswith(_NOT_NEEDED):
            return
        known.pop(subject, None)
        known[subject] = now
        if len(known) > _MAX_SUBJECTS:
            del known[next(iter(known))]

    def link_down(self) -> None:
        """The next connection may have other permissions."""
        self._subscriptions.clear()
        self._publishes.clear()

    def refuses(self, prefix: str, now: float) -> bool:
        """Whether the last publish to some subject below `prefix` was refused."""
        below = f"{prefix.lower()}."
        return any(subject.lower().startswith(below) for subject in self._recent(now))

    def problems(self, now: float) -> list[str]:
        """Sentences for the operator at monotonic second `now`."""
        return [
            self._sentence(verb, subjects)
            for verb, subjects in (("subscribe to", list(self._subscriptions)), ("publish to", self._recent(now)))
            if subjects
        ]

    def _recent(self, now: float) -> list[str]:
        return [subject for subject, at in self._publishes.items() if now - at <= _PUBLISH_LIFE]

    def _sentence(self, verb: str, subjects: list[str]) -> str:
        shown = ", ".join(subjects[-_MAX_SHOWN:])
        more = f" and {len(subjects) - _MAX_SHOWN} more" if len(subjects) > _MAX_SHOWN else ""
        names = " ".join(subjects).lower()
        options = " --artifacts" if "obj_" in names or "$o." in names else ""
        options += " --durability jetstream" if "agh_network_v0" in names else ""
        hint = f"`aghctl nats permissions --peer {self._peer_id}{options}` prints what its user needs"
        return f"the NATS server does not let us {verb} {shown}{more} ({hint}; then restart the daemon)"
