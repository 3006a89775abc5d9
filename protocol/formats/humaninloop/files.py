"""Artifacts of an output envelope as files below a feature root, and the rules for their paths.

Seed 001, Artifact Structure: a path is relative to the feature root. adapters.md, humaninloop has the errors. The adapter
checks the rules before a message is sent, and `aghctl bridge humaninloop apply` again before it writes.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.humaninloop.shape import feature_root_of
from aghbus.protocol.formats.model import Finding, has_errors
from aghbus.protocol.formats.strict_json import pointer

_MAX_FINDINGS: Final = 100  # per message
_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Control, line separator and bidirectional characters: a person who approves a path must see its real content.
_UNSAFE_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# `.git`, and its other names on NTFS: a short name (`git~1`), trailing dots and spaces, a stream (`.git::$INDEX_ALLOCATION`).
_GIT_FOLDER: Final = re.compile(r"(\.git|git~[0-9]+)[. ]*(:.*)?", re.DOTALL)
# Any folder with both is a Git repository, whatever its name.
_GIT_HEAD: Final = re.compile(r"head[. ]*(:.*)?", re.DOTALL)
_GIT_DATA: Final = re.compile(r"(objects|refs|commondir|common~[0-9]+)[. ]*(:.*)?/?", re.DOTALL)

DEFAULT_SUFFIXES: Final = (".csv", ".md", ".txt")
"""Kinds of files of which tools run or load few names by themselves; of JSON, YAML and TOML files they do many."""
# The first are instructions of agent hosts; CMake, Conan, pipenv, pip, entry points and pytest (doctests) use the second.
_LOADED: Final = re.compile(
    r"(agents?|claude|crush|gemini|qwen|skill|warp)(\..*)?\.md"
    r"|(cmakelists|conanfile|entry_points|requires|requirements|test.*)\.txt"
)


class PlannedFile(msgspec.Struct, frozen=True):
    """One file to write: path `segments` below the feature root, `operation` create or update, complete `content`."""

    segments: tuple[str, ...]
    operation: str
    content: str

    @property
    def path(self) -> str:
        """The path as text, from the feature root."""
        return "/".join(self.segments)

    def reference(self) -> dict[str, Any]:
        """The entry of `artifact_refs`: size in bytes of UTF-8, SHA-256 in hex."""
        content = self.content.encode()
        return {
            "type": "file",
            "path": self.path,
            "operation": self.operation,
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
        }


class FilePlan(msgspec.Struct, frozen=True):
    """The files of one output envelope in order; without errors in `findings` their paths do not conflict."""

    files: tuple[PlannedFile, ...]
    findings: tuple[Finding, ...]


def plan_files(message: dict[str, Any], feature_root: str | None = None, opening: Any = None) -> FilePlan:
    """The files of a valid output envelope (`check_output`).

    If a path begins with the feature root, the root is stripped, with a warning. The root is that of `opening`, the input
    envelope of the work, else `feature_root`.
    """
    root = _root_segments(feature_root_of(opening) or feature_root or "")
    files: list[PlannedFile] = []
    findings: list[Finding] = []
    known_paths = _KnownPaths()
    for index, artifact in enumerate(message["artifacts"]):
        where = pointer("artifacts", index, "path")
        segments, faults = _check_path(artifact["path"], root, where)
        if not has_errors(faults):
            faults += known_paths.add(segments, where)
        findings += faults
        files.append(PlannedFile(segments, artifact["operation"], artifact["content"]))
        if len(findings) >= _MAX_FINDINGS:
            break
    return FilePlan(tuple(files), tuple(findings))


def same_name(name: str) -> str:
    """A key that is equal for names that a file system may treat as one: NFC and case folding."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def kind_faults(plan: FilePlan, allowed: Iterable[str]) -> list[Finding]:
    """An error for each file that a tool may run or load by itself, unless `allowed` has its path or that of a folder above."""
    faults = []
    for index, file in enumerate(plan.files):
        if any(f"{file.path}/".startswith(f"{name}/") for name in allowed):
            continue
        names = [_folded(segment) for segment in file.segments]
        where = pointer("artifacts", index, "path")
        if any(name.startswith(".") for name in names):
            faults.append(error(where, "path_hidden", f"{file.path} contains a hidden name (it begins with a dot)"))
        elif not names[-1].endswith(DEFAULT_SUFFIXES):
            rule = f"is none of {', '.join(DEFAULT_SUFFIXES)}: tools may run or load it by themselves"
            faults.append(error(where, "path_kind", f"{file.path} {rule}"))
        elif _LOADED.fullmatch(names[-1]):
            faults.append(error(where, "path_kind", f"{file.path} has a name that tools run or load by themselves"))
    return faults


def is_git_repository(names: Iterable[str]) -> bool:
    """Whether Git takes a folder for a repository, whose configuration runs programs: it holds a file `HEAD`, and `objects`,
    `refs` or `commondir`. `names` are its entries, those of folders with `/` at the end.
    """
    folded = [_folded(name) for name in names]
    return any(map(_GIT_HEAD.fullmatch, folded)) and any(map(_GIT_DATA.fullmatch, folded))


class _KnownPaths:
    """The earlier paths of one message, as a case-insensitive file system sees them."""

    def __init__(self) -> None:
        self.files: set[tuple[str, ...]] = set()
        self.folders: set[tuple[str, ...]] = set()

    def add(self, segments: tuple[str, ...], where: str) -> list[Finding]:
        """The error when `segments` is an earlier path, or a parent folder of one or vice versa."""
        key = tuple(same_name(segment) for segment in segments)
        above = [key[:length] for length in range(1, len(key))]
        if key in self.files:
            return [error(where, "path_twice", "is the same file as an earlier artifact (by NFC and case folding)")]
        if key in self.folders or any(folder in self.files for folder in above):
            return [error(where, "file_as_folder", "one artifact is a file where another has a folder")]
        self.files.add(key)
        self.folders.update(above)
        return []


def _root_segments(root: str) -> tuple[str, ...]:
    """The segments of a relative feature root; empty for any other path, so that nothing is stripped."""
    segments = tuple(segment for segment in root.removesuffix("/").split("/") if segment != ".")
    return () if root.startswith("/") or "" in segments or ".." in segments else segments


def _check_path(path: str, root: tuple[str, ...], where: str) -> tuple[tuple[str, ...], list[Finding]]:
    faults = [error(where, rule, message) for rule, message in path_faults(path)]
    segments = tuple(path.split("/"))
    if faults or not root or segments[: len(root)] != root:
        return segments, faults
    if segments == root:
        return segments, [error(where, "path_is_root", "is the feature root itself")]
    stripped = warning(where, "feature_root_stripped", "begins with the feature root, which was stripped")
    return segments[len(root) :], [stripped]


def path_faults(path: str) -> list[tuple[str, str]]:
    """Rule and message of each fault in a relative path."""
    if path.startswith("/") or _DRIVE.match(path):
        return [("path_absolute", "must be relative to the feature root")]
    faults = []
    segments = path.split("/")
    if ".." in segments or "." in segments:
        faults.append(("path_dots", "must not contain `.` or `..` as a segment"))
    if "" in segments:
        faults.append(("path_empty_segment", "must not be empty, end with `/` or contain `//`"))
    if "\\" in path:
        faults.append(("path_backslash", "must not contain a backslash"))
    if _UNSAFE_CHARACTERS.search(path):
        faults.append(("path_characters", "must not contain control or bidirectional characters"))
    if any(_GIT_FOLDER.fullmatch(_folded(segment)) for segment in segments):
        faults.append(("path_git", "must not contain a Git folder: its files run programs"))
    return faults


def _folded(name: str) -> str:
    """`name` in NFKC, case-folded, without format characters: HFS+ ignores zero-width ones."""
    normal = unicodedata.normalize("NFKC", name).casefold()
    return "".join(character for character in normal if unicodedata.category(character) != "Cf")
