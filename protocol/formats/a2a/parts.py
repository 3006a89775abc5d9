"""Parts of A2A messages and artifacts, and what stands for them in envelopes: text, references, results.

The texts of a message are the text of a say. Each other part becomes a reference in its `artifacts`, and `ext` has the order of
the parts, so that they are given back as they came. A reference is a JSON object:

- `{"type": "file", "uri": …}`: a file elsewhere, or in the object store (`agh://artifacts/…`) with `size` and `sha256`;
- `{"type": "file", "content": BASE64, …}`: a small file;
- `{"type": "data", "data": …}` and `{"type": "text", "text": …}`.

Each may have `name`, `media_type` and `metadata`, in a trace also `artifact_id`, `title` and `description`: references with the
same `artifact_id` are the parts of one artifact.
"""

import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aghbus.protocol.base.text import is_blank
from aghbus.protocol.formats.attachments import compact, cut_text
from aghbus.protocol.formats.derived_ids import canonical

Json = dict[str, Any]

INLINE_BYTES: Final = 32_768
"""A longer file goes to the object store."""
STORED: Final = "agh://"
"""How the URI of a file in the object store begins."""
RESULT: Final = "result"
"""The `artifactId` of the result of a work."""

MAX_NESTING: Final = 24
"""Arrays and objects within each other that A2A's types carry: Protocol Buffers take three of their 100 levels for one."""

_BETWEEN: Final = "\n\n"
_CONTENTS: Final = ("text", "raw", "url", "data")
_ARTIFACT_MEMBERS: Final = {"artifact_id": "artifactId", "title": "name", "description": "description"}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Content(NamedTuple):
    """Parts as members of an envelope: `layout` is their order, None for one plain text."""

    text: str
    references: list[Json]
    layout: list[Json] | None


class File(NamedTuple):
    """A part with raw bytes that belong into the object store, under a name that is safe there."""

    name: str
    content: bytes


def part_fault(part: Any) -> str:
    """Why a part cannot be taken, empty if it can."""
    if not isinstance(part, Mapping) or sum(name in part for name in _CONTENTS) != 1:
        return "must have exactly one of text, raw, url and data"
    if "raw" in part and _decoded(part["raw"]) is None:
        return "raw: must be base64"
    return ""


def large_files(parts: list[Json]) -> dict[int, File]:
    """The parts whose bytes go to the object store, by their position."""
    found = {}
    for position, part in enumerate(parts):
        content = _decoded(part["raw"]) if "raw" in part else None
        if content is not None and len(content) > INLINE_BYTES:
            digits = hashlib.sha256(content).hexdigest()[:16]
            name = _UNSAFE.sub("_", part.get("filename") or "file").lstrip(".-")[-100:]
            found[position] = File(f"{digits}-{name}", content)
    return found


def content_of(parts: list[Json], stored: Mapping[int, Json]) -> Content:
    """What carries parts that have no fault. `stored` has `uri`, `size` and `sha256` of those in the object store."""
    texts, references, layout = list[str](), list[Json](), list[Json]()
    for position, part in enumerate(parts):
        named = _described(part)
        if "text" in part:
            texts.append(part["text"])
            layout.append({"chars": len(part["text"]), **named})
        else:
            layout.append({"ref": len(references)})
            references.append(_reference(part, stored.get(position)) | named)
    text = _BETWEEN.join(texts)
    if is_blank(text):
        text = _text_without_texts(references)
        layout = [entry for entry in layout if "ref" in entry]
    is_plain = len(parts) == 1 and layout == [{"chars": len(text)}]
    return Content(text, references, None if is_plain else layout)


def reference_of(part: Json, stored: Json | None = None) -> Json:
    """The reference for one part, also for a text."""
    made = {"type": "text", "text": part["text"]} if "text" in part else _reference(part, stored)
    return made | _described(part)


def _reference(part: Json, stored: Json | None) -> Json:
    if "data" in part:
        return {"type": "data", "data": part["data"]}
    if "url" in part:
        return {"type": "file", "uri": part["url"]}
    if stored is not None:
        return {"type": "file", **stored}
    content = _decoded(part["raw"]) or b""
    whole = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return {"type": "file", "content": _encoded(content), **whole}


def parts_of(text: str, references: list[Any], layout: Any = None) -> list[Json]:
    """The parts of a say: in the order of its `layout`, if that fits, else the text and then the others."""
    if isinstance(layout, list) and (laid := _laid_out(text, references, layout)) is not None:
        return laid
    parts = [] if is_blank(text) else [{"text": text}]
    return [*parts, *map(part_of, references)]


def part_of(reference: Any) -> Json:
    """The part that a reference stands for. One in the object store is a `url` that only peers understand: see `is_stored`."""
    if not isinstance(reference, Mapping):
        return {"data": bounded(reference)}
    named = _names(reference)
    if isinstance(content := reference.get("content"), str) and _decoded(content) is not None:
        return {"raw": content, **named}
    if isinstance(uri := reference.get("uri"), str):
        return {"url": uri, **named}
    if isinstance(reference.get("text"), str) and reference.get("type") == "text":
        return {"text": reference["text"], **named}
    if "data" in reference and reference.get("type") == "data":
        return {"data": bounded(reference["data"]), **named}
    return {"data": bounded(reference)}


def bounded(value: Any, levels: int = MAX_NESTING) -> Any:
    """A value of a peer, in which arrays and objects that are nested more deeply are their JSON as text."""
    if not isinstance(value, (Mapping, list)):
        return value
    if not levels:
        return compact(value)
    if isinstance(value, list):
        return [bounded(each, levels - 1) for each in value]
    return {name: bounded(each, levels - 1) for name, each in value.items()}


def is_stored(part: Json) -> bool:
    """Whether a part is a file in the object store."""
    return str(part.get("url", "")).startswith(STORED)


def with_content(part: Json, content: bytes) -> Json:
    """A part that is in the object store, with its content."""
    return {"raw": _encoded(content), **{name: value for name, value in part.items() if name != "url"}}


def artifacts_of(body: Mapping[str, Any]) -> list[Json]:
    """The artifacts of a trace: its result, and its references, as A2A has them."""
    found = dict[str, Json]()
    result = body.get("result")
    if result is not None and (parts := _result_parts(result)):
        found[RESULT] = {"artifactId": RESULT, "name": RESULT, "parts": parts}
        if extra := _result_metadata(result):
            found[RESULT]["metadata"] = extra
    for reference in body.get("artifact_refs") or ():
        part, about = part_of(reference), reference if isinstance(reference, Mapping) else {}
        name = _artifact_id(reference, about)
        artifact = found.setdefault(name, {"artifactId": name, "parts": []})
        artifact["parts"].append(part)
        members = {
            theirs: about[ours] for ours, theirs in _ARTIFACT_MEMBERS.items() if isinstance(about.get(ours), str)
        }
        if isinstance(about.get("artifact_metadata"), Mapping):
            members["metadata"] = bounded(about["artifact_metadata"])
        if "name" not in members and isinstance(part.get("filename"), str):
            members["name"] = part["filename"]
        artifact.update(members)
    return [*found.values()]


def references_of(artifact: Json, stored: Mapping[int, Json]) -> list[Json]:
    """The references for an artifact of A2A, one a part; `artifacts_of` makes the same artifact of them."""
    about = {ours: artifact[theirs] for ours, theirs in _ARTIFACT_MEMBERS.items() if artifact.get(theirs)}
    if artifact.get("metadata"):
        about["artifact_metadata"] = artifact["metadata"]
    parts = artifact.get("parts") or []
    return [reference_of(part, stored.get(position)) | about for position, part in enumerate(parts)]


def _artifact_id(reference: Any, about: Mapping[str, Any]) -> str:
    for name in ("artifact_id", "name", "uri"):
        if isinstance(value := about.get(name), str) and value:
            return value
    return hashlib.sha256(canonical(reference)).hexdigest()[:16]


def _result_parts(result: Any) -> list[Json]:
    """A result as parts; of a command under `aghctl serve` its output alone."""
    if not _is_of_serve(result):
        return [{"data": bounded(result)}]
    if "output" in result:
        return [{"data": bounded(result["output"]), "mediaType": "application/json"}]
    return [] if is_blank(result["stdout"]) else [{"text": result["stdout"], "mediaType": "text/plain"}]


def _result_metadata(result: Any) -> Json:
    if not _is_of_serve(result):
        return {}
    return {name: bounded(result[name]) for name in ("exit_code", "duration_s", "truncated") if name in result}


def _is_of_serve(result: Any) -> bool:
    if not isinstance(result, Mapping) or "exit_code" not in result:
        return False
    return isinstance(result.get("stdout"), str) or "output" in result


def _described(part: Json) -> Json:
    """The members of a reference, or of an entry of a layout, that describe a part."""
    names = {"filename": "name", "mediaType": "media_type", "metadata": "metadata"}
    return {ours: part[theirs] for theirs, ours in names.items() if part.get(theirs)}


def _names(about: Mapping[str, Any]) -> Json:
    named = {}
    if isinstance(about.get("name"), str) and about["name"]:
        named["filename"] = about["name"]
    if isinstance(about.get("media_type"), str) and about["media_type"]:
        named["mediaType"] = about["media_type"]
    if isinstance(about.get("metadata"), Mapping) and about["metadata"]:
        named["metadata"] = bounded(about["metadata"])
    return named


def _laid_out(text: str, references: list[Any], layout: list[Any]) -> list[Json] | None:
    """Parts in their order; None when the layout does not fit text and references."""
    parts, shown, at, has_texts = list[Json](), list[int](), 0, False
    for entry in layout:
        if not isinstance(entry, Mapping):
            return None
        number, size = entry.get("ref"), entry.get("chars")
        if type(number) is int and 0 <= number < len(references):
            parts.append(part_of(references[number]))
            shown.append(number)
        elif type(size) is int and size >= 0:
            at += len(_BETWEEN) if has_texts else 0
            parts.append({"text": text[at : at + size], **_names(entry)})
            at, has_texts = at + size, True
        else:
            return None
    if sorted(shown) != [*range(len(references))]:
        return None
    return parts if (at == len(text) if has_texts else text == _text_without_texts(references)) else None


def _text_without_texts(references: list[Any]) -> str:
    """The text of a say whose message has none: its data, else the names of its files."""
    about = [one for one in references if isinstance(one, Mapping)]
    data = [compact(one["data"]) for one in about if one.get("type") == "data" and "data" in one]
    names = ", ".join(str(one.get("name") or one.get("uri") or "a file") for one in about)
    return cut_text("\n".join(data) or ("a file" if about and is_blank(names) else names))


def _decoded(raw: Any) -> bytes | None:
    """The bytes of base64, the URL-safe form too, with or without padding; None for anything else."""
    if not isinstance(raw, str):
        return None
    plain = raw.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4), strict_mode=True)
    except (ValueError, UnicodeEncodeError):
        return None


def _encoded(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()
