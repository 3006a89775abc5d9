"""What the targets share: JSON as Python's own reader sees it, comparison that tells 1 from true, views of a receiver's state."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from aghbus.protocol.agh.limits import MAX_DEPTH, MAX_ENVELOPE_BYTES

NOW: Final = 1_776_366_200  # the moment of the vectors
VECTORS: Final = Path(__file__).parent.parent / "vectors"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MOST_DIGITS: Final = 308  # of a number that a double can hold; parsers treat longer ones differently


def vector_lines(*names: str) -> Iterator[dict[str, Any]]:
    """The cases of `tests/vectors/<name>.jsonl`, one file after the other; a file that is not there has none."""
    for name in names:
        path = VECTORS / f"{name}.jsonl"
        for line in path.read_bytes().splitlines() if path.exists() else ():
            yield json.loads(line)


def dump(value: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def reading(raw: bytes) -> dict[str, Any] | None:
    """The object in `raw` by Python's own reader; None where it is no JSON object within the bounds of an envelope."""
    value = any_json(raw) if len(raw) <= MAX_ENVELOPE_BYTES else None
    return value if isinstance(value, dict) else None


def any_json(raw: bytes) -> Any:
    """The value in `raw`; None if it is not JSON, nested too deeply, or beyond what every parser supports, also in the first
    value of a repeated member."""
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_object, parse_int=_integer, parse_float=_double, parse_constant=_constant
        )
    except (ValueError, RecursionError):
        return None
    return value if _depth_within(raw) and not _has_surrogate(value) else None


def same(left: Any, right: Any) -> bool:
    """The same JSON value; `1`, `1.0` and `true` are three."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def only(found: Iterable[object], *kinds: type) -> bool:
    """Whether everything found is of one of these kinds."""
    return all(isinstance(one, kinds) for one in found)


def _depth_within(raw: bytes) -> bool:
    """Counts brackets outside strings one character at a time: slow and simple, as a reference."""
    depth, inside, skip = 0, False, False
    for char in raw:
        if skip:
            skip = False
        elif inside:
            skip, inside = char == 0x5C, char != 0x22
        elif char == 0x22:
            inside = True
        elif char in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return False
        elif char in b"]}":
            depth -= 1
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs) and _has_surrogate(pairs):  # perhaps in a value that is dropped here
        raise ValueError("lone surrogate")
    return value


def _has_surrogate(value: Any) -> bool:
    return _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise ValueError("out of range")
    return int(text)


def _double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("out of range")
    return value


def _constant(text: str) -> float:
    raise ValueError(text)
