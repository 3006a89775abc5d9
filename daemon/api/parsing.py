"""Decoding a request into typed values. Every error is an InvalidRequest that names the field and the rule.

A duration may be given as a text. Only then a request is decoded a second time, with the seconds in its place.
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar, get_args
from urllib.parse import parse_qsl, unquote

import msgspec
import msgspec.inspect

from aghbus.daemon.api.http.exchange import Exchange
from aghbus.protocol.api.base import MAX_SEQ, SECONDS, RequestModel
from aghbus.protocol.api.queries import Query
from aghbus.protocol.base.durations import parse_duration
from aghbus.protocol.base.errors import InvalidRequest

MAX_PARAMETERS: Final = 64
"""Parameters in one query string, repeats included."""

_WHERE: Final = re.compile(r"^(?P<rule>.*?)(?: - at `(?P<where>[^`]*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_MISSING: Final = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)

_TEXT_FOR_SECONDS: Final = re.compile(r"Expected `float(?: \| null)?`, got `str`")
_OUT_OF_BOUNDS: Final = re.compile(r"Expected `(?:int|float)` [<>]= ")

Q = TypeVar("Q", bound=Query)
A = TypeVar("A", bound=RequestModel)
F = TypeVar("F", bound=msgspec.Struct)


def unquoted(raw: str) -> str:
    """A path segment, percent-decoded. Raises InvalidRequest when it is not UTF-8."""
    try:
        return unquote(raw, errors="strict")
    except UnicodeDecodeError:
        raise InvalidRequest("path: is not percent-encoded UTF-8") from None


def path_arguments(form: type[Query], segments: Sequence[str]) -> list[Any]:
    """The fields of `form` in their order, from the percent-encoded segments of the path that stand for them."""
    values = dict(zip(form.__struct_fields__, segments, strict=True))
    for name, segment in values.items():
        if "%" in segment:
            values[name] = unquoted(segment)
    return list(msgspec.structs.astuple(_convert(values, form)))


def query_string(raw: bytes, form: type[Q]) -> Q:
    """A query string as `form`. An unknown parameter, or a second value of a single one, is an error."""
    if not raw:
        empty: Q = _empty(form)
        return empty
    values: dict[str, Any] = {}
    repeatable = _sets(form)
    for name, value in _pairs(raw):
        if name in repeatable:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise InvalidRequest(f"{name}: is given more than once")
        else:
            values[name] = value
    query = _convert(values, form)
    if "null" in values.values():  # msgspec reads the word as None
        for field in msgspec.structs.fields(form):
            if field.encode_name in values and getattr(query, field.name) is None:
                raise InvalidRequest(f"{field.encode_name}: invalid value 'null'")
    return query


def last_event_id(exchange: Exchange) -> int | None:
    """The `Last-Event-ID` header: the sequence of the last event that the client has seen; None without the header."""
    if b"last-event-id" not in exchange.headers:
        return None
    text = exchange.headers[b"last-event-id"][-1]
    if not text.isdigit() or len(text) > len(str(MAX_SEQ)) or int(text) > MAX_SEQ:
        raise InvalidRequest("Last-Event-ID: is not a sequence number", hint="send the `id` of the last event seen")
    return int(text)


def request(raw: bytes, form: type[A]) -> A:
    """A request body as `form`; an empty body stands for `{}`."""
    try:
        value: A = _decoder(form).decode(raw or b"{}")
    except msgspec.ValidationError as error:
        value = _convert(_values(raw, form, error), form, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"body: is not valid JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("body: is nested too deeply") from None
    return value


def _values(raw: bytes, form: type[msgspec.Struct], error: msgspec.ValidationError) -> dict[str, Any]:
    """The fields of a body that may have a text in place of seconds. Raises InvalidRequest if `error` was about anything else."""
    if _TEXT_FOR_SECONDS.match(str(error)):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            values: dict[str, Any] = msgspec.json.decode(raw)
            return values
    raise _described(error, form) from None


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidRequest("query: is not percent-encoded UTF-8") from None
    except ValueError:
        raise InvalidRequest(
            "query: is not `name=value` joined by `&`", hint=f"at most {MAX_PARAMETERS} parameters"
        ) from None


def _convert(values: dict[str, Any], form: type[F], *, strict: bool = False) -> F:
    try:
        return msgspec.convert(values, form, strict=strict)
    except msgspec.ValidationError as error:
        if not _TEXT_FOR_SECONDS.match(str(error)):
            raise _described(error, form) from None
    try:
        return msgspec.convert({**values, **_seconds(values, form)}, form, strict=strict)
    except msgspec.ValidationError as error:
        raise _described(error, form) from None


def _seconds(values: dict[str, Any], form: type[msgspec.Struct]) -> dict[str, float]:
    """Those of `values` that are durations as texts, in seconds."""
    found: dict[str, float] = {}
    for name in _durations(form) & values.keys():
        with contextlib.suppress(ValueError, AttributeError):  # neither a duration nor a text: the decoder describes it
            found[name] = parse_duration(values[name])
    return found


def _described(error: msgspec.ValidationError, form: type[msgspec.Struct]) -> InvalidRequest:
    """`field: rule` from msgspec's message, with the choices of the field as a hint."""
    match = _WHERE.match(str(error))
    rule, where = (match["rule"], match["where"] or "") if match else (str(error), "")
    field = where.removeprefix("$").removeprefix(".")
    if unknown := _UNKNOWN.match(rule):
        path = ".".join(part for part in (field, unknown["field"]) if part)
        known = ", ".join(form.__struct_encode_fields__)
        return InvalidRequest(
            f"{path}: is not known here", hint=f"known: {known}" if known else "no fields are known here"
        )
    if missing := _MISSING.match(rule):
        return InvalidRequest(f"{missing['field']}: is required")
    name = re.split(r"[.\[]", field, maxsplit=1)[0]
    field = name if issubclass(form, Query) else field  # the index among several values of a parameter is of no use
    if field in _durations(form):
        return InvalidRequest(f"{field}: must be {_bounds(form)[field]} seconds, or a text such as 30s, 5m, 1h30m")
    if _OUT_OF_BOUNDS.match(rule) and (bounds := _bounds(form).get(field)):
        return InvalidRequest(f"{field}: must be {bounds}")
    choices = _choices(form).get(name, ())
    hint = f"one of {', '.join(choices)}" if choices else ""
    return InvalidRequest(f"{field or 'body'}: {rule[:1].lower()}{rule[1:]}", hint=hint)


@cache
def _decoder(form: type[A]) -> msgspec.json.Decoder[A]:
    return msgspec.json.Decoder(form)


@cache
def _empty(form: type[Q]) -> Q:
    """`form` without any parameter; queries are frozen."""
    return _convert({}, form)


@cache
def _sets(form: type[msgspec.Struct]) -> frozenset[str]:
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(f.encode_name for f in info.fields if isinstance(f.type, msgspec.inspect.FrozenSetType))


@cache
def _choices(form: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """The values of each field that is a choice among words."""
    return {name: words for name, hint in _hints(form).items() if (words := _words(hint))}


@cache
def _bounds(form: type[msgspec.Struct]) -> dict[str, str]:
    """The smallest and largest value of each number that has them, as text."""
    numbers = {
        name: number
        for name, kind in _kinds(form)
        if isinstance(number := getattr(kind, "type", kind), msgspec.inspect.IntType | msgspec.inspect.FloatType)
    }
    return {name: f"{_number(kind.ge)} to {_number(kind.le)}" for name, kind in numbers.items() if kind.ge is not None}


@cache
def _durations(form: type[msgspec.Struct]) -> frozenset[str]:
    """The fields that are durations."""
    return frozenset(name for name, kind in _kinds(form) if getattr(kind, "extra_json_schema", None) == SECONDS)


def _kinds(form: type[msgspec.Struct]) -> Iterator[tuple[str, msgspec.inspect.Type]]:
    """Each field's name in JSON with its type, and with each of several alternatives."""
    info = msgspec.inspect.type_info(form)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        for kind in getattr(field.type, "types", (field.type,)):
            yield field.encode_name, kind


def _number(value: float | None) -> str:
    return "unlimited" if value is None else str(int(value))  # bounds are whole numbers


def _hints(form: type[msgspec.Struct]) -> dict[str, Any]:
    return {f.encode_name: f.type for f in msgspec.structs.fields(form)}


def _words(hint: Any) -> tuple[str, ...]:
    found: list[str] = []
    for argument in get_args(hint):
        found.extend([argument] if isinstance(argument, str) else _words(argument))
    return tuple(found)
