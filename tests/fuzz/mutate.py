"""Mutations that keep JSON whole: bytes changed at random seldom get past the reader."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Final

from tests.fuzz.oracles import any_json

_ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, -0.0, 2**53, 2**63, 2**64, 1e300, 1e-320, "", " ", "\u0000", "\u202e", "ü", "😀"),
    *("a" * 300, "../x", "@", "ops@" + "0" * 32, "{{input}}", "null", "msg_1", [], {}, [[]], {"": None}, [None] * 3),
)
_TEXTS: Final = ("\ud800", "e\u0301", "\u2028", '"', "\\", "\x7f", "\x85", ".", "*", ">", "\n", "@", "-", "~1")


def mutate(raw: bytes, seed: int, others: Sequence[bytes] = ()) -> bytes:
    """`raw` with one, two or four changes that `seed` picks; bytes that are no JSON are changed as bytes.

    `others` are inputs that parts are taken from.
    """
    random = Random(seed)
    value = any_json(raw)
    if value is None or random.random() < 0.15:
        return _bytes(raw, random)
    parts = [any_json(random.choice(others))] if others else []
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        value = _changed(value, random, parts)
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    if isinstance(value, dict) and value and random.random() < 0.05:  # a name twice, which no dict can hold
        first = random.choice((json.dumps(random.choice(_ODD)), "1e999", "[" * 130 + "]" * 130))
        text = f"{{{json.dumps(random.choice(list(value)))}: {first}, {text[1:]}"
    return text.encode("utf-8", "surrogatepass")


def _changed(value: Any, random: Random, parts: list[Any]) -> Any:
    """`value` with one change at a place reached by chance."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        return _in_object(value, key, random, parts)
    if isinstance(value, list) and value and random.random() < 0.8:
        at = random.randrange(len(value))
        if random.random() < 0.15:
            return [*value[:at], *value[at + 1 :]]
        if random.random() < 0.15:
            return [*value, value[at]]
        return [*value[:at], _changed(value[at], random, parts), *value[at + 1 :]]
    if isinstance(value, str) and random.random() < 0.5:
        return _text(value, random)
    if isinstance(value, int) and random.random() < 0.5:
        return value + random.choice((-301, -1, 1, 300, 301, 7 * 86_400))
    return _other(random, parts)


def _in_object(value: dict[str, Any], key: str, random: Random, parts: list[Any]) -> dict[str, Any]:
    match random.randrange(10):
        case 0:
            return {name: inner for name, inner in value.items() if name != key}
        case 1:
            return {_text(name, random) if name == key else name: inner for name, inner in value.items()}
        case 2:
            return {**value, random.choice(("to", "work_id", "proof", "ext", "x")): _other(random, parts)}
        case 3:
            other = random.choice(list(value))
            return {**value, key: value[other], other: value[key]}
    return {**value, key: _changed(value[key], random, parts)}


def _text(text: str, random: Random) -> str:
    at = random.randint(0, len(text))
    end = min(len(text), at + random.choice((0, 0, 1, 2, 10)))
    return text[:at] + random.choice(("", *_TEXTS, text[:5])) + text[end:]


def _other(random: Random, parts: list[Any]) -> Any:
    """An odd value, one nested about as deeply as an envelope may be, or a part of another input."""
    if random.random() < 0.03:
        depth = random.randint(120, 132)
        return json.loads("[" * depth + "]" * depth)
    found = random.choice(parts) if parts and random.random() < 0.6 else random.choice(_ODD)
    while isinstance(found, dict | list) and found and random.random() < 0.6:
        found = random.choice(list(found.values()) if isinstance(found, dict) else found)
    return found


def _bytes(raw: bytes, random: Random) -> bytes:
    at = random.randint(0, len(raw))
    end = min(len(raw), at + random.choice((0, 1, 1, 4, 40)))
    new = random.choice(
        (b"", b'"', b"\\", b"{", b"[" * 130, b"1e999", b"\\ud800", b"\xff", b"null,", bytes([random.randrange(256)]))
    )
    return raw[:at] + new + raw[end:]
