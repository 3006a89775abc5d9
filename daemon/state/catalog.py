"""The capability catalog: the operator's records, validated, with their digests.

Three forms: a `.toml` or a `.json` file of many records (an array, or a table by id, under `capabilities`; in JSON also a
bare array), or a folder with one record in each `ID.toml` or `ID.json`. Records are sent in the normal form that the
digest covers (specification, section 3).
"""

import json
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from aghbus.daemon.config.layers import Problem, did_you_mean, parse_toml
from aghbus.daemon.config.settings import Settings
from aghbus.host.locations import Locations
from aghbus.protocol.agh.capability_digest import FIELDS, LISTS, capability_digest, normalize_capability
from aghbus.protocol.agh.discovery import Record
from aghbus.protocol.agh.errors import Malformed, ProtocolError
from aghbus.protocol.agh.limits import MAX_CARD_ENTRY_BYTES, MAX_LIST_ITEMS, MAX_SUMMARY_BYTES
from aghbus.protocol.base.errors import AghbusError
from aghbus.protocol.base.text import byte_length, has_control

MAX_FILE_BYTES: Final = 1 << 20
"""Largest catalog file: the size of one envelope, beyond which its records could not be sent."""

_SUFFIXES: Final = (".toml", ".json")
_TEXT_LISTS: Final = (*LISTS, "requirements")
_KNOWN: Final = frozenset({*FIELDS, "digest", "workspace_id"})  # the last one as in the seed's example; not part of it


class Catalog(msgspec.Struct, frozen=True):
    """The records in catalog order, the claimed ids without a record, and the path (None without a catalog)."""

    records: tuple[Record, ...] = ()
    claims: tuple[str, ...] = ()
    path: str | None = None


class CatalogError(AghbusError):
    """An invalid catalog; `problems` lists every problem and is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class CatalogSource(msgspec.Struct, frozen=True):
    """The path of the catalog: the configured `path`, else the existing one of `candidates`; plus `claims`."""

    path: str | None
    candidates: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()

    def load(self) -> Catalog:
        """Read the catalog. Raises `CatalogError`."""
        return load_catalog(self._existing(), self.claims)

    def signature(self) -> tuple[tuple[str, int, int, int], ...]:
        """Path, inode, size and modification time of every file of the catalog; equal as long as nothing changed."""
        paths = [self.path] if self.path else self.candidates
        return tuple(entry for path in paths for entry in _signatures(Path(path)))

    def _existing(self) -> str | None:
        if self.path:
            return self.path
        existing = [path for path in self.candidates if Path(path).exists()]
        if len(existing) > 1:
            rule = f"there must be only one of {' and '.join(existing)}"
            raise CatalogError([Problem("catalog", "default", rule, "remove one, or name the other with --catalog")])
        return existing[0] if existing else None


def load_catalog(path: str | None, extra_ids: Sequence[str] = ()) -> Catalog:
    """The catalog at `path` (None: there is none) with the ids in `extra_ids` that have no record as bare claims.

    Raises `CatalogError` with every problem, each naming file, key and rule.
    """
    if path is None:
        return Catalog(claims=tuple(dict.fromkeys(extra_ids)))
    reader = _Reader()
    records = tuple(reader.folder(Path(path)) if Path(path).is_dir() else reader.file(Path(path)))
    if len(records) > MAX_LIST_ITEMS:
        reader.problem("capabilities", path, f"must not hold more than {MAX_LIST_ITEMS} records")
    if reader.problems:
        raise CatalogError(reader.problems)
    known = {record.id for record in records}
    return Catalog(records, tuple(name for name in dict.fromkeys(extra_ids) if name not in known), path)


def catalog_source(settings: Settings, locations: Locations) -> CatalogSource:
    """The catalog's place and the claimed ids by the settings."""
    return CatalogSource(settings.catalog, locations.catalog_candidates, settings.capabilities)


def record_of(entry: Mapping[str, Any]) -> Record:
    """The record in `entry`, in normal form and with its digest. Raises ProtocolError, whose `field` begins with `capability.`."""
    document: dict[str, Any] = {**normalize_capability(entry)}
    for key, limit in (("id", MAX_CARD_ENTRY_BYTES), ("summary", MAX_SUMMARY_BYTES)):
        if has_control(document[key]) or byte_length(document[key]) > limit:
            raise Malformed(
                f"must be one line of at most {limit} bytes, without control characters", f"capability.{key}"
            )
    if entry["id"] != document["id"]:
        raise Malformed("must not have white space at either end", "capability.id")
    digest = capability_digest(document)
    return Record(document["id"], document["summary"], digest, {**document, "digest": digest})


class _Reader:
    """Reads a catalog once, and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._origins: dict[str, str] = {}

    def problem(self, key: str, path: Path | str, rule: str, hint: str = "") -> None:
        self.problems.append(Problem(key, f"file {path}", rule, hint))

    def folder(self, folder: Path) -> Iterator[Record]:
        """The records of a folder in order of their files' names; hidden entries are skipped."""
        try:
            paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            self.problem("catalog", folder, f"cannot be read: {error.strerror}")
            return
        for path in paths:
            if path.suffix not in _SUFFIXES:
                self.problem("catalog", path, "must be called ID.toml or ID.json", "move other files elsewhere")
            elif _leads_out(path, folder):
                self.problem("catalog", path, "must not be a link that leads out of the folder")
            elif (document := self._document(path)) is not None:
                yield from self._record(document, path, "capability", named=path.stem)

    def file(self, path: Path) -> Iterator[Record]:
        """The records of one file, in its order."""
        if path.suffix not in _SUFFIXES:
            self.problem("catalog", path, "must be a .toml file, a .json file or a folder")
            return
        document = self._document(path)
        if isinstance(document, dict):
            for key in document.keys() - {"capabilities"}:
                hint = did_you_mean(key, ["capabilities"]).lstrip(", ")
                self.problem(key, path, "unknown key; records belong under `capabilities`", hint)
            document = document.get("capabilities", [])
        if isinstance(document, dict):
            for name, entry in document.items():
                yield from self._record(entry, path, f"capabilities.{name}", named=name)
        elif isinstance(document, list):
            for number, entry in enumerate(document):
                yield from self._record(entry, path, f"capabilities[{number}]")
        elif document is not None:
            self.problem("capabilities", path, "must be an array or a table of records")

    def _document(self, path: Path) -> Any:
        """The JSON or TOML value in a file, or None with the problem noted."""
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block the read
                self.problem("catalog", path, "must be a regular file")
                return None
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                self.problem("catalog", path, f"must not be larger than {MAX_FILE_BYTES} bytes")
                return None
            return _decode(data.decode("utf-8"), path.suffix)
        except OSError as error:
            self.problem("catalog", path, f"cannot be read: {error.strerror}")
        except UnicodeDecodeError as error:
            self.problem("catalog", path, f"must be UTF-8, and is not at byte {error.start}")
        except (ValueError, RecursionError) as error:
            self.problem("catalog", path, f"must be {path.suffix[1:].upper()}: {error}")
        return None

    def _record(self, entry: Any, path: Path, where: str, *, named: str | None = None) -> Iterator[Record]:
        """The record in `entry`, or nothing if it has problems. `named` is the id by its file name or key."""
        if not isinstance(entry, dict):
            self.problem(where, path, "must be a table of fields")
            return
        before = len(self.problems)
        if named is not None and entry.setdefault("id", named) != named:
            self.problem(f"{where}.id", path, f"must be {named!r}: the id must match its key or file name")
        self._check_fields(entry, path, where)
        if len(self.problems) > before:
            return
        try:
            record = record_of(entry)
        except ProtocolError as error:
            self.problem(error.field.replace("capability", where, 1), path, error.rule)
            return
        name, digest = record.id, record.digest
        if entry.get("digest") not in (None, digest):
            self.problem(f"{where}.digest", path, f"must be {digest} for this record", "leave it out: it is computed")
            return
        if name in self._origins:
            self.problem(f"{where}.id", path, f"{name!r} is already defined in {self._origins[name]}")
            return
        self._origins[name] = str(path)
        yield record

    def _check_fields(self, entry: Mapping[str, Any], path: Path, where: str) -> None:
        for key, value in entry.items():
            if key not in _KNOWN:
                self.problem(f"{where}.{key}", path, "unknown field", did_you_mean(key, _KNOWN).lstrip(", "))
            elif value is None:
                continue
            elif key in _TEXT_LISTS:
                if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
                    self.problem(f"{where}.{key}", path, "must be a list of texts")
            elif not isinstance(value, str):
                self.problem(f"{where}.{key}", path, "must be a text")


def _leads_out(path: Path, folder: Path) -> bool:
    try:
        return not path.resolve(strict=True).is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):  # a dangling or circular link: opening it reports that
        return False


def _decode(text: str, suffix: str) -> Any:
    if suffix == ".toml":
        return parse_toml(text)
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("an object has a key twice")
    return members


def _signatures(path: Path) -> Iterator[tuple[str, int, int, int]]:
    try:
        status = path.stat()
        yield str(path), status.st_ino, status.st_size, status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            for entry in sorted(entry for entry in path.iterdir() if entry.suffix in _SUFFIXES):
                status = entry.stat()
                yield str(entry), status.st_ino, status.st_size, status.st_mtime_ns
    except OSError:
        return  # removed meanwhile: the signature differs
