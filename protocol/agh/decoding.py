"""JSON of peers and agents at a bounded cost: structure is bounded before it is decoded, and no number is slow to convert.

msgspec converts most numbers in 0.04 µs, but one near the ends of the range of a double in up to 9 µs: a megabyte of `1e308`
takes 1.5 s. Python takes at most 0.6 µs for any number of up to 40 digits, so the decoders of this module let it convert doubles.
"""

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from aghbus.protocol.agh.errors import Undecodable
from aghbus.protocol.agh.limits import MAX_CONTAINERS, MAX_DEPTH, MAX_DOUBLES, MAX_NUMBERS

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
    if len(raw) > _COUNTED_BYTES and (excess := count_excess(raw)):
        raise Undecodable(excess)
    if is_deeper(raw, MAX_DEPTH):
        raise Undecodable(f"is nested deeper than {MAX_DEPTH}")


def count_excess(raw: bytes) -> str:
    """The rule about containers, numbers or doubles that `raw` breaks; empty if none."""
    if len(raw) <= _COUNTED_BYTES or not _count(raw).excess():
        return ""
    return _count(_outside_strings(raw)).excess()


def is_deeper(raw: bytes, depth: int) -> bool:
    """Whether arrays and objects are nested deeper than `depth`."""
    if raw.count(b"{") + (raw.count(b"[") if _BRACKET in raw else 0) <= depth:
        return False
    brackets = _outside_strings(raw).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > depth


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


class _Costs(NamedTuple):
    """Processor time in microseconds: of a message, and of each of its bytes, containers, numbers and doubles."""

    message: float
    byte: float
    container: float
    number: float
    double: float


_UNSIGNED: Final = _Costs(100.0, 0.05, 0.2, 0.02, 0.6)
_SIGNED: Final = _Costs(200.0, 0.1, 0.7, 0.2, 2.0)  # with the signature and the canonical form
SMALL_BYTES: Final = 4_096


def processing_cost(raw: bytes, *, signed: bool) -> float:
    """Estimated processor time of a message in microseconds, from its arrival to its commit, without decoding it.

    The costs are measured with messages at each bound. Structure is counted in messages of more than 4 KiB, also inside strings.
    """
    costs = _SIGNED if signed else _UNSIGNED
    cost = costs.message + costs.byte * len(raw)
    if len(raw) <= SMALL_BYTES:
        return cost
    counts = _count(raw)
    return cost + costs.container * counts.containers + costs.number * counts.numbers + costs.double * counts.doubles
