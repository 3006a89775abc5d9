"""The one stream of spec section 7: created when it is missing, never changed by us when it exists.

Differences that an operator made are reported with the command that changes them; everything continues as well as that stream
allows.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.config.value_types import show_size
from aghbus.daemon.nats.jetstream import StreamConfig, StreamInfo
from aghbus.daemon.nats.link import JetStreamError, Link
from aghbus.protocol.agh.nats import names as nats_names
from aghbus.protocol.agh.nats.jetstream import DUPLICATE_WINDOW, MAX_MESSAGE_BYTES, NANOSECONDS, stream_config
from aghbus.protocol.base.durations import format_duration
from aghbus.protocol.base.text import escape

STREAM: Final = nats_names.STREAM
SUBJECTS: Final = nats_names.STREAM_SUBJECTS
NOT_FOUND: Final = 10059
EXISTS: Final = 10058
FULL: Final = 10077
"""Error codes of nats-server (its file errors.json): no such stream, a stream of that name, no room for a message."""
_TTL_LEVEL: Final = 1  # of the API, from which messages may have a time to live of their own (nats-server 2.11)
_SUBJECTS_OVERLAP: Final = 10065
_NO_STORAGE: Final = frozenset({10023, 10028, 10047})  # too little left: of anything, for the account, on the disk


class StreamStatus(msgspec.Struct, frozen=True):
    """The stream as of the last check: `created` distinguishes a stream from its successor of the same name.

    `last_seq` is the sequence of its last message, `max_age` in seconds (0: without bound). `problems` are the differences from
    what it should be, each a sentence that says what to change.
    """

    created: str
    messages: int
    bytes: int
    max_bytes: int
    last_seq: int
    max_age: float
    has_ttl: bool
    problems: tuple[str, ...] = ()


async def ensure_stream(link: Link, settings: JetStreamSettings) -> StreamStatus:
    """The stream as it is now, created if need be. Raises JetStreamError with what to change, LinkError."""
    account = await link.jetstream(lambda js: js.account_info())
    may_expire = (account.api.level or 0) >= _TTL_LEVEL
    try:
        info = await link.jetstream(lambda js: js.stream_info(STREAM))
    except JetStreamError as error:
        if error.code != NOT_FOUND:
            raise
        info = await _create(link, settings, expires=may_expire)
    config = info.config.as_dict()
    return StreamStatus(
        created=str(info.created),
        messages=info.state.messages,
        bytes=info.state.bytes,
        max_bytes=info.config.max_bytes or -1,
        last_seq=info.state.last_seq,
        max_age=info.config.max_age or 0.0,
        has_ttl=bool(info.config.allow_msg_ttl),
        problems=tuple(differences(config, settings, may_expire=may_expire)),
    )


async def _create(link: Link, settings: JetStreamSettings, *, expires: bool) -> StreamInfo:
    config = StreamConfig.from_response(wanted(settings, expires=expires))
    try:
        return await link.jetstream(lambda js: js.add_stream(config))
    except JetStreamError as error:
        if error.code == EXISTS:  # another daemon was faster, with other settings
            return await link.jetstream(lambda js: js.stream_info(STREAM))
        raise _explained(error, settings) from None


def _explained(error: JetStreamError, settings: JetStreamSettings) -> JetStreamError:
    if error.code == _SUBJECTS_OVERLAP:
        hint = f"another stream takes subjects of {SUBJECTS}: delete it, or leave them out of it"
    elif error.code in _NO_STORAGE:
        hint = f"it needs {show_size(settings.max_bytes)}: lower jetstream.max_bytes, or give JetStream more room"
    else:
        hint = "the account must be allowed to create streams"
    return JetStreamError(error.code, f"the stream {STREAM} cannot be created: {error} ({hint})")


def wanted(settings: JetStreamSettings, *, expires: bool) -> dict[str, Any]:
    """The configuration of a new stream in the API's form; `expires` when the server supports a TTL for each message."""
    return stream_config(
        discard=settings.discard,
        max_age=settings.max_age,
        max_bytes=settings.max_bytes,
        replicas=settings.replicas,
        expires=expires,
    )


def differences(config: Mapping[str, Any], settings: JetStreamSettings, *, may_expire: bool) -> list[str]:
    """Each way in which a stream's configuration loses something of delivery, and how to change it."""
    subjects = [str(subject) for subject in config.get("subjects") or ()]
    size = int(config.get("max_msg_size", -1))
    age = int(config.get("max_age", 0)) / NANOSECONDS
    window = int(config.get("duplicate_window", 0)) / NANOSECONDS
    discard, retention = (escape(str(config.get(key, usual))) for key, usual in _POLICIES)
    per_subject = int(config.get("max_msgs_per_subject", -1))
    age_here, window_here = format_duration(settings.max_age), format_duration(DUPLICATE_WINDOW)
    checks = (
        (
            not any(covers(subject, SUBJECTS) for subject in subjects),
            f"keeps only {escape(', '.join(subjects)) or 'nothing'}, not {SUBJECTS}",
            _edit(f"--subjects '{SUBJECTS}'"),
        ),
        (
            0 <= size < MAX_MESSAGE_BYTES,
            f"takes messages of at most {size} bytes, an envelope and its headers may have {MAX_MESSAGE_BYTES}",
            _edit(f"--max-msg-size {MAX_MESSAGE_BYTES}"),
        ),
        (
            0 < age < settings.max_age,
            f"keeps messages for {format_duration(age)}, jetstream.max_age here is {age_here}",
            f"{_edit(f'--max-age {age_here}')}, or set jetstream.max_age",
        ),
        (
            int(config.get("max_bytes", -1)) <= 0,
            "has no bound in bytes, and can fill the disk",
            _edit(f"--max-bytes {settings.max_bytes}"),
        ),
        (
            discard != settings.discard,
            f"discards the {discard} when it is full, jetstream.discard here is {settings.discard}",
            f"{_edit(f'--discard {settings.discard}')}, or set jetstream.discard",
        ),
        (
            config.get("storage") != "file",
            "is kept in memory, and lost when the server restarts",
            _recreate("storage"),
        ),
        (
            retention != "limits",
            f"has retention {retention}: a message that one peer acks is lost to others",
            _recreate("retention"),
        ),
        (
            per_subject > 0,
            f"keeps only {per_subject} messages for each peer",
            _edit("--max-msgs-per-subject=-1"),
        ),
        (
            bool(config.get("no_ack")),
            "does not confirm what it stores, so that nothing counts as published",
            _edit("--ack"),
        ),
        (
            window < DUPLICATE_WINDOW,
            f"recognizes duplicates for {format_duration(window)}, not for {window_here}",
            _edit(f"--dupe-window {DUPLICATE_WINDOW}s"),
        ),
        (
            may_expire and not config.get("allow_msg_ttl"),
            "keeps envelopes after they have expired, and fills up sooner",
            _edit("--allow-msg-ttl"),
        ),
    )
    return [f"stream {STREAM}: {what} ({change})" for wrong, what, change in checks if wrong]


_POLICIES: Final = (("discard", "old"), ("retention", "limits"))  # keys, and the defaults of the server


def covers(pattern: str, subject: str) -> bool:
    """Whether every subject that matches `subject` matches `pattern` too."""
    want, have = subject.split("."), pattern.split(".")
    for index, part in enumerate(have):
        if part == ">":
            return index < len(want)
        if index >= len(want) or want[index] == ">" or part not in ("*", want[index]):
            return False
    return len(have) == len(want)


def _edit(flag: str) -> str:
    return f"`nats stream edit {STREAM} {flag}`"


def _recreate(field: str) -> str:
    return f"{field} cannot be edited: delete the stream, and it is created again"
