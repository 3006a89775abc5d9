"""What their agent gets for a work of ours, and what its answer becomes."""

import binascii
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.base.text import byte_length, is_blank, shorten

MAX_REPORT: Final = 500
"""Characters of a progress report."""
MAX_MESSAGE: Final = 200_000
"""Bytes of an answer that fits the end of a work; a longer one is a file of its own."""
EXCERPT: Final = 4_000
"""Characters of such an answer that are in the message."""
ANSWER_NAME: Final = "answer.txt"


def prompt_text(body: Mapping[str, Any]) -> str:
    """The prompt for an opening: its text, else the capability that it carries."""
    text = body.get("text")
    if isinstance(text, str) and not is_blank(text):
        return text
    return msgspec.json.format(msgspec.json.encode(body.get("capability") or dict(body)), indent=2).decode()


def clean(text: str) -> str:
    """Without lone surrogates, which JSON of theirs may have and UTF-8 has not."""
    return text.encode("utf-8", "replace").decode()


def report(text: str) -> str:
    """The last line of what an agent has written so far, as a progress report; empty if it has written nothing."""
    line = next((one for one in reversed(text[-4 * MAX_REPORT :].splitlines()) if not is_blank(one)), "")
    return shorten(line.strip(), MAX_REPORT)


def answer(text: str) -> tuple[str | None, bytes | None]:
    """The message that ends a work, and the whole answer as a file if it is too long for that."""
    if byte_length(text) <= MAX_MESSAGE:
        return (text if not is_blank(text) else None), None
    return shorten(text, EXCERPT), text.encode("utf-8", "replace")


def content(base64: str) -> bytes | None:
    """The content of an attachment: RFC 4648, section 4, without white space. None for anything else."""
    try:
        return binascii.a2b_base64(base64.encode("ascii"), strict_mode=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
