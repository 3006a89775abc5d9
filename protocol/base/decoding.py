"""JSON of peers and agents at a bounded cost: structure is bounded before it is decoded, and no number is slow to convert.

msgspec converts a decimal fraction in 0.04 µs, but one near the ends of the range of a double in up to 9 µs: a megabyte of
`1e308` takes 1.5 s. Python's own conversion takes at most 0.6 µs for any number, so the decoders of this module use it.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from aghbus.protocol.errors import Undecodable
from aghbus.protocol.limits import MAX_CONTAINERS, MAX_DEPTH, MAX_DOUBLES, MAX_NUMBERS

_T = TypeVar("_T")

_COUNTED_BYTES: Final = 2 * MAX_CONTAINERS  # shorter bytes are within all counts
_BRACKET: Final = ord("[")
_BACKSLASH: Final = ord("\\")
_STEP: Final = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if not _STEP[byte])
_CLASSES: Final = bytes.maketrans(b"{E123456789+-]} \t\n\r", b"[e00000000000,,,,,,")


def _double(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("number out of range")
    return value


def decoder(kind: type[_T]) -> Callable[[bytes | msgspec.Raw], _T]:
    """A decoder of JSON to `kind`. Raises msgspec.DecodeError, RecursionError or ValueError, also for a number out of range."""
    return msgspec.json.Decoder(kind, float_hook=_double).decode


decode_json: Final[Callable[[bytes | msgspec.Raw], Any]] = msgspec.json.Decoder(float_hook=_double).decode
"""Any JSON value; errors as `decoder`. Bytes that were never checked need `check_structure` before."""


def check_structure(raw: bytes) -> None:
    """Raises Undecodable for JSON that is nested too deeply, or has too many containers, numbers or doubles (docs/limits.md).

    Other bytes than JSON may pass.
    """
    if len(raw) > _COUNTED_BYTES and _count(raw).excess():
        excess = _count(_outside_strings(raw)).excess()
        if excess:
            raise Undecodable(excess)
    if raw.count(b"{") + (raw.count(b"[") if _BRACKET in raw else 0) > MAX_DEPTH:
        brackets = _outside_strings(raw).translate(None, _NO_BRACKETS)
        if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH:
            raise Undecodable(f"is nested deeper than {MAX_DEPTH}")


class _Counts(NamedTuple):
    """What is decoded from some bytes. With the text of strings it is an upper bound."""

    containers: int
    numbers: int
    doubles: int

    def excess(self) -> str:
        """The rule that these counts break; empty if none."""
        if self.containers > MAX_CONTAINERS:
            return f"has more than {MAX_CONTAINERS} arrays and objects"
        if self.numbers > MAX_NUMBERS:
            return f"has more than {MAX_NUMBERS} numbers"
        return f"has more than {MAX_DOUBLES} fractions and exponents of numbers" if self.doubles > MAX_DOUBLES else ""


def _count(raw: bytes) -> _Counts:
    """A number ends with a digit before a comma, a bracket or white space; in `true` and `false` no digit follows the `e`."""
    classes = raw.translate(_CLASSES)
    return _Counts(classes.count(b"["), classes.count(b"0,"), classes.count(b".") + classes.count(b"e0"))


def _outside_strings(raw: bytes) -> bytes:
    """`raw` without its strings: linear in its size, whatever the bytes. JSON has backslashes only inside strings."""
    if _BACKSLASH in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b" ".join(raw.split(b'"')[::2])


_MESSAGE_COST: Final = (100.0, 100.0)
_BYTE_COST: Final = (0.02, 0.05)
_CONTAINER_COST: Final = (0.2, 0.5)
_NUMBER_COST: Final = (0.02, 0.2)
_DOUBLE_COST: Final = (0.6, 1.5)
_SMALL_BYTES: Final = 4096


def processing_cost(raw: bytes, *, signed: bool) -> float:
    """Estimated processor time of a message in microseconds, from its arrival to its commit; found before it is decoded.

    The costs were measured with messages at each bound; the second of each pair is added for a signature and the
    canonical form. Structure is counted in messages of more than 4 KiB, also inside strings.
    """
    counts = _count(raw) if len(raw) > _SMALL_BYTES else _Counts(0, 0, 0)
    units = (1, len(raw), *counts)
    costs = (_MESSAGE_COST, _BYTE_COST, _CONTAINER_COST, _NUMBER_COST, _DOUBLE_COST)
    return sum(count * (cost[0] + cost[1] * signed) for count, cost in zip(units, costs, strict=True))
