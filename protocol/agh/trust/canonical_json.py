"""Strict JSON decoding, and the canonical form of RFC 8785 (spec section 8)."""

import json
import math
import re
from typing import Any, Final

import msgspec
import rfc8785

from aghbus.protocol.agh.decoding import decode_json

MAX_INTEGER: Final = 2**53 - 1  # RFC 7493 section 2.2: beyond it two integers share one double
_MAX_DIGITS: Final = 17  # characters of the longest integer within that, its sign included

# Characters beyond the basic plane, raw or escaped: UTF-16 and code points sort differently there (RFC 8785 section 3.2.3).
_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89a-fA-F]")
_POINT: Final = 1e-6  # smaller doubles are written with an exponent, by msgspec also those below the next bound
_MSGSPEC_POINT: Final = 1e-5
_EXPONENT: Final = (
    1e21  # these and larger doubles are written with an exponent, by msgspec also those from the next bound on
)
_MSGSPEC_EXPONENT: Final = 1e16
_encode: Final = msgspec.json.Encoder().encode
_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Unfaithful(ValueError):
    """JSON without a faithful canonical form. The message is the rule that it breaks, without text of the peer."""


class Received(msgspec.Struct, frozen=True):
    """A JSON object as received. `plain`: it has no doubles and no characters beyond the basic plane (`canonical_bytes`)."""

    value: dict[str, Any]
    plain: bool


def read_strict(raw: bytes) -> Received:
    """The object in `raw`. Raises Unfaithful for JSON that RFC 8785 cannot represent, and for anything but a JSON object.

    That is: duplicate names at any depth, integers beyond 2^53-1, numbers beyond a double, NaN, Infinity, lone surrogates,
    and bytes that are not UTF-8.
    """
    value = _as_written(raw)
    return Received(value, plain=True) if value is not None else _read_slowly(raw)


def _as_written(raw: bytes) -> dict[str, Any] | None:
    """The object in `raw`, six times faster, if it is certain to be faithful and plain; else None.

    An object that encodes to exactly the bytes that it was decoded from has no duplicate names and no surrogates, and is
    UTF-8. This holds for most envelopes: compact encoders write no white space and no needless escapes.
    """
    try:
        value = decode_json(raw)
        if not isinstance(value, dict) or _encode(value) != raw or not _small_integers_only(value):
            return None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return value if raw.isascii() or not _ASTRAL.search(raw) else None


def _small_integers_only(value: dict[str, Any] | list[Any]) -> bool:
    """Whether all numbers in `value`, at any depth, are integers within 2^53-1."""
    for item in value.values() if isinstance(value, dict) else value:
        kind = type(item)
        if kind is str or item is None or kind is bool:
            continue
        if kind is int:
            if not -MAX_INTEGER <= item <= MAX_INTEGER:
                return False
        elif kind is float or not _small_integers_only(item):
            return False
    return True


def _read_slowly(raw: bytes) -> Received:
    numbers = _Numbers()
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=numbers.double,
            parse_constant=_constant,
        )
    except Unfaithful:
        raise
    except UnicodeDecodeError:
        raise Unfaithful("is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Unfaithful("is not JSON that can be read") from None
    if not isinstance(value, dict):
        raise Unfaithful("must be a JSON object")
    return Received(value, plain=not numbers.doubles and not _ASTRAL.search(raw))


def canonical_bytes(received: Received) -> bytes:
    """The canonical form (RFC 8785) of an object from `read_strict`, from which the caller may have removed members.

    Without doubles and without characters beyond the basic plane, that is what msgspec's sorted encoder writes. Others are made
    ready for the plain encoder first: ten to forty times as slow, but still five times as fast as the library `rfc8785` on a
    large envelope. Raises Unfaithful for lone surrogates.
    """
    try:
        return _encode_sorted(received.value) if received.plain else _encode(_canonical(received.value))
    except (ValueError, RecursionError):  # UnicodeEncodeError is among the first
        raise Unfaithful("has no canonical form: it contains a lone surrogate or is nested too deeply") from None


def _canonical(value: Any) -> Any:
    """`value` with the members of objects in canonical order, and doubles as what msgspec writes in their canonical form."""
    kind = type(value)
    if kind is float:
        return _canonical_double(value)
    if kind is list:
        return [_canonical(item) for item in value]
    if kind is not dict:
        return value
    names = sorted(value)
    if len(names) > 1 and not "".join(names).isascii():
        names.sort(key=_utf_16)
    return {name: _canonical(value[name]) for name in names}


def _canonical_double(value: float) -> int | float | msgspec.Raw:
    """RFC 8785 section 3.2.2.3. msgspec and Python write the shortest digits, too, but put point and exponent elsewhere."""
    size = abs(value)
    if size < _MSGSPEC_EXPONENT:
        if value.is_integer():
            return int(value)
        if size >= _MSGSPEC_POINT:
            return value
        if size < _POINT:
            return msgspec.Raw(repr(value).replace("e-0", "e-").encode())
    elif size >= _EXPONENT:
        return msgspec.Raw(repr(value).encode())
    return msgspec.Raw(rfc8785.dumps(value))


def _utf_16(name: str) -> bytes:
    return name.encode("utf-16-be")


class _Numbers:
    """Parses doubles, and records whether there was one."""

    __slots__ = ("doubles",)

    def __init__(self) -> None:
        self.doubles = False

    def double(self, text: str) -> float:
        self.doubles = True
        value = float(text)
        if math.isinf(value):
            raise Unfaithful("contains a number beyond the range of a double")
        return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise Unfaithful("contains the same name twice in one object")
    return value


def _integer(text: str) -> int:
    value = int(text) if len(text) <= _MAX_DIGITS else MAX_INTEGER + 1
    if abs(value) > MAX_INTEGER:
        raise Unfaithful("contains an integer beyond 2^53-1")
    return value


def _constant(_text: str) -> float:
    raise Unfaithful("contains NaN or Infinity, which JSON does not know")
