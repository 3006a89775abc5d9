"""Text from untrusted peers: trimming as the protocol defines it, and escaping for terminals and logs."""

import re
from typing import Final

# Spec section 3: U+0009-U+000D, U+0020, U+0085, U+00A0 and Unicode category Z. `str.strip()` alone would also
# remove U+001C-U+001F, and digests would differ from the reference's.
WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Characters that move the cursor, hide text or reorder it: C0, DEL, C1, line separators, bidirectional controls, all
# default-ignorable code points of Unicode, tags, and lone surrogates (which cannot be printed).
_INVISIBLE: Final = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# The selectors of text and emoji style are part of a symbol when they follow one; elsewhere they hide bits.
_SYMBOLS: Final = "\xa9\xae\u203c\u2049\u2122\u2139\u2190-\u3299\U0001f000-\U0001faff"
UNPRINTABLE: Final = re.compile(f"[{_INVISIBLE}]|(?<![{_SYMBOLS}])[\ufe0e\ufe0f]")
"""What `escape` does not leave as it is, one character a match."""
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def trim(text: str) -> str:
    """`text` without white space at either end, by the protocol's own set of white space (spec section 3)."""
    return text.strip(WHITE_SPACE)


def is_blank(text: str) -> bool:
    """True when nothing is left after trimming."""
    return not text.strip(WHITE_SPACE)


def has_control(text: str) -> bool:
    """True when `text` holds a control character: C0, DEL or C1 (Unicode category Cc)."""
    return _CONTROL.search(text) is not None


def byte_length(text: str) -> int:
    """Length in UTF-8 bytes, the unit of every bound of the spec."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def escape(text: str) -> str:
    """`text` made safe to print: control, bidirectional and invisible characters as `\\n`, `\\x1b`, `\\u202e`.

    The result cannot move a cursor, recolour a terminal, forge a line or reorder the text around it.
    """
    if text.isascii() and text.isprintable():
        return text

    def replace(match: re.Match[str]) -> str:
        char = match.group()
        code = ord(char)
        if char in _SHORT:
            return _SHORT[char]
        if code <= 0xFF:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"

    return UNPRINTABLE.sub(replace, text)


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, ending in `…` when something was cut."""
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…"
