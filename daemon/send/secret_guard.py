"""The guard against sent credentials: an envelope of our own agent that carries obvious ones is refused, or logged.

The Go reference drops envelopes with much that only resembles a credential (protocol/base/refused_text.py). What is sent to a peer
that greets as it does is checked by those rules, too, or changed. Only `body` and `ext` are checked; the daemon fills in the rest.
A finding is named by its path; its value is never repeated.
"""

import asyncio
import logging
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.spans import trace_ids
from aghbus.protocol.agh.delivery.order import AFTER
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.base.refused_text import refused_paths, without_refused
from aghbus.protocol.base.secret_check import CODE, first_secret, secret_like, shown
from aghbus.protocol.base.secret_patterns import Path, may_hold_secrets
from aghbus.store.engine.commit.transaction import Transaction

_BODY: Final = b'"body":'
_AFTER: Final = b'"%b":' % AFTER.encode()  # in `ext`, which is the last member


class SecretGuard:
    """Checks outgoing envelopes as `secrets.guard` says: `refuse`, `warn` or `off`."""

    def __init__(self, context: DaemonContext, presence: PresenceTable) -> None:
        self._settings = context.settings
        self._presence = presence
        self._counters = context.counters
        self._log_limiter = context.log_limiter

    def replaced(self, tx: Transaction, draft: Draft) -> Draft:
        """A valid `draft` without what its receiver and `check` refuse, if that is the Go reference; itself otherwise."""
        if draft.to is None or not self._presence.is_reference(draft.workspace_id, draft.channel, draft.to):
            return draft
        changed = msgspec.structs.replace(draft, body=without_refused(draft.body), ext=without_refused(draft.ext))
        if changed == draft:
            return draft
        tx.after_commit(partial(self._counters.add, "secrets.replaced"))
        return changed

    def check(self, tx: Transaction, envelope: Envelope, *, allowed: bool) -> None:
        """Raise InvalidRequest (code `secret_like`), or log, when `envelope` seems to carry credentials.

        `allowed`: the caller said that this envelope may go as it is.
        """
        mode = self._settings.current.secrets.guard
        if allowed or mode == "off":
            return
        # From the body on, without the predecessor: an own envelope has only ids and names before and in these. A key cannot
        # stand unescaped in a string.
        raw, to = envelope.raw, envelope.to
        end = -1 if envelope.ext is None else raw.rfind(_AFTER)
        if may_hold_secrets(raw[max(raw.find(_BODY), 0) : end if end >= 0 else len(raw)]):
            self._check_own(tx, envelope, mode)
        if to is not None and self._presence.is_reference(envelope.workspace_id, envelope.channel, to):
            self._check_refused(tx, envelope, mode)

    def _check_own(self, tx: Transaction, envelope: Envelope, mode: str) -> None:
        document = envelope.document()
        (document.get("ext") or {}).pop(AFTER, None)  # the daemon's own
        found = first_secret(document)
        if found is None:
            return
        self._report(tx, secret_like(found), envelope, found, mode)

    def _check_refused(self, tx: Transaction, envelope: Envelope, mode: str) -> None:
        document = envelope.document()
        parts: dict[Path, Any] = {("body",): document.get("body")}
        for key, value in (document.get("ext") or {}).items():  # the reference does not look at these keys
            parts["ext", key] = value
        found = next(
            ((start + path, form) for start, part in parts.items() for path, form in refused_paths(part)), None
        )
        if found is None:
            return
        path, form = shown(found[0]), found[1]
        error = InvalidRequest(
            f"{path}: has the form of a credential (pattern {form}), and {envelope.to} is a Go reference, which drops such "
            "messages (docs/interop.md)",
            hint="write it differently, say replace_secrets: true (aghctl: --replace-secrets), or allow_secrets: true to try",
            code=CODE,
        )
        self._report(tx, error, envelope, path, mode)

    def _report(self, tx: Transaction, error: InvalidRequest, envelope: Envelope, path: str, mode: str) -> None:
        """Raise `error`, or log it, as `mode` says."""
        if mode == "refuse":
            tx.after_commit(self._count_refused)  # if the job goes on without the envelope
            raise error
        tx.after_commit(partial(self._warn, envelope, path))

    def sent(self, sending: asyncio.Future[Any]) -> None:
        """A job that sends has ended: count it if it failed because an envelope was refused."""
        error = None if sending.cancelled() else sending.exception()
        if isinstance(error, InvalidRequest) and error.error_code == CODE:
            self._count_refused()

    def _count_refused(self) -> None:
        self._counters.add("secrets.refused")

    def _warn(self, envelope: Envelope, path: str) -> None:
        self._counters.add("secrets.warned")
        self._log_limiter.event(
            logging.WARNING,
            "secrets",
            "sent what looks like a credential",
            id=envelope.id,
            path=path,
            **trace_ids(envelope),
        )
