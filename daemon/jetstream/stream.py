"""The one stream of spec section 7: created when it is missing, compared when it is there, never changed by us.

What an operator made differently is reported with the command that changes it; everything goes on as well as that stream allows.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.config.value_types import show_size
from aghbus.daemon.jetstream.api import STREAM_EXISTS, STREAM_NOT_FOUND, JetStreamApi, JetStreamError
from aghbus.protocol.base.durations import format_duration
from aghbus.protocol.nats import names as nats_names
from aghbus.protocol.nats.jetstream import DUPLICATE_WINDOW, MAX_MESSAGE_BYTES, NANOSECONDS, stream_config
from aghbus.protocol.text import escape

STREAM: Final = nats_names.STREAM
SUBJECTS: Final = nats_names.STREAM_SUBJECTS
_TTL_LEVEL: Final = 1  # of the API, from which messages may have a time to live of their own (nats-server 2.11)
_SUBJECTS_OVERLAP: Final = 10065
_NO_STORAGE: Final = frozenset({10023, 10028, 10047})  # too little left: of anything, for the account, on the disk


class StreamState(msgspec.Struct, frozen=True):
    """What a look at the stream showed: `created` tells one stream from the next of the same name.

    `problems` are the differences from what it should be, each a sentence that says what to change.
    """

    created: str
    messages: int
    bytes: int
    max_bytes: int
    first_seq: int
    last_seq: int
    expires_messages: bool
    problems: tuple[str, ...] = ()


async def ensure_stream(api: JetStreamApi, settings: JetStreamSettings) -> StreamState:
    """The stream as it is now, made first if need be. Raises JetStreamError with what to change in it, LinkError."""
    try:
        info = await api.call(f"STREAM.INFO.{STREAM}")
    except JetStreamError as error:
        if error.code != STREAM_NOT_FOUND:
            raise
        info = await _create(api, settings)
    return _read(info, settings, await _may_expire(api))


async def _create(api: JetStreamApi, settings: JetStreamSettings) -> dict[str, Any]:
    config = wanted(settings, expires=await _may_expire(api))
    try:
        return await api.call(f"STREAM.CREATE.{STREAM}", config)
    except JetStreamError as error:
        if error.code == STREAM_EXISTS:  # another daemon was faster, with other settings
            return await api.call(f"STREAM.INFO.{STREAM}")
        raise _explained(error, settings) from None


async def _may_expire(api: JetStreamApi) -> bool:
    account = await api.call("INFO")
    return int(account.get("api", {}).get("level", 0)) >= _TTL_LEVEL


def _explained(error: JetStreamError, settings: JetStreamSettings) -> JetStreamError:
    if error.code == _SUBJECTS_OVERLAP:
        hint = f"another stream takes subjects of {SUBJECTS}: delete it, or leave them out of it"
    elif error.code in _NO_STORAGE:
        hint = f"it needs {show_size(settings.max_bytes)}: lower jetstream.max_bytes, or give JetStream more room"
    else:
        hint = "the account must be allowed to create streams"
    return JetStreamError(error.code, f"the stream {STREAM} cannot be created: {error} ({hint})")


def wanted(settings: JetStreamSettings, *, expires: bool) -> dict[str, Any]:
    """The configuration of a new stream; `expires` when the server lets messages have a life of their own."""
    return stream_config(
        discard=settings.discard,
        max_age=settings.max_age,
        max_bytes=settings.max_bytes,
        replicas=settings.replicas,
        expires=expires,
    )


def _read(info: Mapping[str, Any], settings: JetStreamSettings, may_expire: bool) -> StreamState:
    config, state = info["config"], info["state"]
    return StreamState(
        created=str(info["created"]),
        messages=int(state["messages"]),
        bytes=int(state["bytes"]),
        max_bytes=int(config.get("max_bytes", -1)),
        first_seq=int(state["first_seq"]),
        last_seq=int(state["last_seq"]),
        expires_messages=bool(config.get("allow_msg_ttl")),
        problems=tuple(differences(config, settings, may_expire=may_expire)),
    )


def differences(config: Mapping[str, Any], settings: JetStreamSettings, *, may_expire: bool) -> list[str]:
    """Each way in which a stream's configuration takes something away from delivery, and how to mend it."""
    return [
        f"stream {STREAM}: {what} ({mend})"
        for wrong, what, mend in (check(config, settings) for check in _CHECKS)
        if wrong
    ] + _expiry(config, may_expire)


def covers(pattern: str, subject: str) -> bool:
    """Whether every subject that matches `subject` matches `pattern` too."""
    want, have = subject.split("."), pattern.split(".")
    for index, part in enumerate(have):
        if part == ">":
            return index < len(want)
        if index >= len(want) or want[index] == ">" or part not in ("*", want[index]):
            return False
    return len(have) == len(want)


Finding = tuple[bool, str, str]
Check = Callable[[Mapping[str, Any], JetStreamSettings], Finding]


def _edit(flag: str) -> str:
    return f"`nats stream edit {STREAM} {flag}`"


def _again(field: str) -> str:
    return f"{field} cannot be edited: delete the stream, and it is created anew"


def _subjects(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    subjects = [str(subject) for subject in config.get("subjects") or ()]
    shown = escape(", ".join(subjects)) or "nothing"
    wrong = not any(covers(subject, SUBJECTS) for subject in subjects)
    return wrong, f"keeps only {shown}, not {SUBJECTS}", _edit(f"--subjects '{SUBJECTS}'")


def _message_size(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    size = int(config.get("max_msg_size", -1))
    what = f"takes messages of at most {size} bytes, an envelope and its headers may have {MAX_MESSAGE_BYTES}"
    return 0 <= size < MAX_MESSAGE_BYTES, what, _edit(f"--max-msg-size {MAX_MESSAGE_BYTES}")


def _age(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    age = int(config.get("max_age", 0)) / NANOSECONDS
    wish = format_duration(settings.max_age)
    what = f"keeps messages for {format_duration(age)}, jetstream.max_age here is {wish}"
    return 0 < age < settings.max_age, what, f"{_edit(f'--max-age {wish}')}, or set jetstream.max_age"


def _bounded(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    wrong = int(config.get("max_bytes", -1)) <= 0
    return wrong, "has no bound in bytes, and can fill the disk", _edit(f"--max-bytes {settings.max_bytes}")


def _discard(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    policy = escape(str(config.get("discard", "old")))
    what = f"discards the {policy} when it is full, jetstream.discard here is {settings.discard}"
    return policy != settings.discard, what, f"{_edit(f'--discard {settings.discard}')}, or set jetstream.discard"


def _storage(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    wrong = config.get("storage") != "file"
    return wrong, "is kept in memory, and lost when the server restarts", _again("storage")


def _retention(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    retention = escape(str(config.get("retention", "limits")))
    return (
        retention != "limits",
        f"has retention {retention}: what one peer acks is lost to others",
        _again("retention"),
    )


def _per_subject(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    count = int(config.get("max_msgs_per_subject", -1))
    return count > 0, f"keeps only {count} messages for each peer", _edit("--max-msgs-per-subject=-1")


def _confirms(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    wrong = bool(config.get("no_ack"))
    return wrong, "does not confirm what it stores, so that nothing counts as published", _edit("--ack")


def _duplicates(config: Mapping[str, Any], settings: JetStreamSettings) -> Finding:
    window = int(config.get("duplicate_window", 0)) / NANOSECONDS
    what = f"recognizes duplicates for {format_duration(window)}, not for {format_duration(DUPLICATE_WINDOW)}"
    return window < DUPLICATE_WINDOW, what, _edit(f"--dupe-window {DUPLICATE_WINDOW}s")


def _expiry(config: Mapping[str, Any], may_expire: bool) -> list[str]:
    if not may_expire or config.get("allow_msg_ttl"):
        return []
    return [
        f"stream {STREAM}: keeps envelopes after they have expired, and fills up sooner ({_edit('--allow-msg-ttl')})"
    ]


_CHECKS: Final[tuple[Check, ...]] = (
    _subjects,
    _message_size,
    _age,
    _bounded,
    _discard,
    _storage,
    _retention,
    _per_subject,
    _confirms,
    _duplicates,
)
