"""Resource refs of the Sentient platform: their grammar, their targets, and the immutable fields of a chain.

Seed 000, Resources Fields, Ref ID Conventions, Compliance Requirement 5, Output Integrity Checks.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.sentient.message import MAX_FINDINGS, DerivedRef, RefLists, SourceRef, StorageRef, quoted
from aghbus.protocol.formats.strict_json import pointer

Ref = SourceRef | StorageRef | DerivedRef

_GRAMMAR: Final = {
    "source_refs": re.compile(r"src_[1-9][0-9]{0,8}"),
    "storage_refs": re.compile(r"store_[1-9][0-9]{0,8}"),
    "derived_refs": re.compile(r"derived_[1-9][0-9]{0,8}"),
}
# adapters.md, sentient: members that never change once a ref is assigned; `storage_uri` only once it is set.
_FIXED: Final = {
    "source_refs": ("url",),
    "storage_refs": ("source_ref_id",),
    "derived_refs": ("parent_ref_id", "asset_type"),
}
# The members that identify a ref independently of its id: a missing ref with an equal new one was renamed.
_IDENTITY: Final = {
    "source_refs": ("url",),
    "storage_refs": ("source_ref_id", "storage_backend", "media_type"),
    "derived_refs": ("parent_ref_id", "asset_type", "capability_id"),
}


def check_refs(resources: RefLists) -> tuple[Finding, ...]:
    """The errors of the refs of one message: grammar, duplicate, dangling, circular."""
    return tuple(islice(_own_faults(resources), MAX_FINDINGS))


def compare_refs(before: RefLists, now: RefLists) -> tuple[Finding, ...]:
    """The errors against the parent message's refs: dropped, renamed, changed. New refs are allowed."""
    return tuple(islice(_changes(before, now), MAX_FINDINGS))


def late_refs(before: RefLists, now: RefLists) -> tuple[Finding, ...]:
    """A warning for each source and storage ref that is not in the parent message: only the Objective Agent assigns them."""
    why = "is new: the objective agent assigns source and storage refs"
    found = (
        warning(pointer("resources", name, index, "ref_id"), "ref_late", f"{quoted(ref.ref_id)} {why}")
        for (name, earlier), (_, refs) in zip(_lists(before), _lists(now), strict=True)
        for index, ref in enumerate(refs)
        if name != "derived_refs" and ref.ref_id not in {one.ref_id for one in earlier}
    )
    return tuple(islice(found, MAX_FINDINGS))


def reused_refs(earlier: RefLists, now: RefLists) -> tuple[Finding, ...]:
    """The errors of a new chain whose refs differ from equal ids in an earlier message of the session."""
    return tuple(islice(_reused(earlier, now), MAX_FINDINGS))


def _lists(resources: RefLists) -> Iterator[tuple[str, tuple[Ref, ...]]]:
    yield "source_refs", resources.source_refs
    yield "storage_refs", resources.storage_refs
    yield "derived_refs", resources.derived_refs


def _own_faults(resources: RefLists) -> Iterator[Finding]:
    seen: set[str] = set()
    for name, refs in _lists(resources):
        for index, ref in enumerate(refs):
            path = pointer("resources", name, index, "ref_id")
            if not _GRAMMAR[name].fullmatch(ref.ref_id):
                prefix = _GRAMMAR[name].pattern.partition("_")[0]
                yield error(path, "ref_grammar", f"{quoted(ref.ref_id)} does not have the form {prefix}_N")
            if ref.ref_id in seen:
                yield error(path, "ref_twice", f"{quoted(ref.ref_id)} is used twice")
            seen.add(ref.ref_id)
    yield from _links(resources, seen)


def _links(resources: RefLists, known: set[str]) -> Iterator[Finding]:
    sources = {ref.ref_id for ref in resources.source_refs}
    for index, stored in enumerate(resources.storage_refs):
        if stored.source_ref_id is not None and stored.source_ref_id not in sources:
            path = pointer("resources", "storage_refs", index, "source_ref_id")
            yield error(path, "ref_dangling", f"there is no source ref {quoted(stored.source_ref_id)}")
    parents = {ref.ref_id: ref.parent_ref_id for ref in resources.derived_refs if ref.parent_ref_id is not None}
    circular = _circular(parents)
    for index, derived in enumerate(resources.derived_refs):
        path = pointer("resources", "derived_refs", index, "parent_ref_id")
        if derived.parent_ref_id is not None and derived.parent_ref_id not in known:
            yield error(path, "ref_dangling", f"there is no ref {quoted(derived.parent_ref_id)}")
        elif derived.ref_id in circular:
            yield error(path, "ref_circular", f"{quoted(derived.ref_id)} is derived from itself")


def _circular(parents: Mapping[str, str]) -> set[str]:
    """The refs on a cycle of parents; each ref is visited once."""
    done: set[str] = set()
    found: set[str] = set()
    for start in parents:
        walked: dict[str, None] = {}
        here = start
        while here in parents and here not in done and here not in walked:
            walked[here] = None
            here = parents[here]
        if here in walked:
            names = list(walked)
            found.update(names[names.index(here) :])
        done.update(walked)
    return found


def _changes(before: RefLists, now: RefLists) -> Iterator[Finding]:
    for (name, earlier), (_, refs) in zip(_lists(before), _lists(now), strict=True):
        known = {ref.ref_id: ref for ref in earlier}
        present = {ref.ref_id for ref in refs}
        fresh = {_identity(name, ref): ref.ref_id for ref in refs if ref.ref_id not in known}
        for ref in earlier:
            if ref.ref_id not in present:
                yield _missing(name, ref, fresh.get(_identity(name, ref)))
        for index, ref in enumerate(refs):
            if ref.ref_id in known:
                yield from _changed(name, index, known[ref.ref_id], ref)


def _identity(name: str, ref: Ref) -> tuple[str | None, ...]:
    return tuple(getattr(ref, member) for member in _IDENTITY[name])


def _missing(name: str, ref: Ref, renamed: str | None) -> Finding:
    path = pointer("resources", name)
    if renamed is not None:
        return error(path, "ref_renamed", f"{quoted(ref.ref_id)} of the parent message became {quoted(renamed)}")
    return error(path, "ref_dropped", f"{quoted(ref.ref_id)} of the parent message is missing")


def _changed(name: str, index: int, before: Ref, now: Ref) -> Iterator[Finding]:
    fixed = _FIXED[name]
    if getattr(before, "storage_uri", None) is not None:
        fixed = (*fixed, "storage_uri")
    for member in fixed:
        if getattr(before, member) != getattr(now, member):
            path = pointer("resources", name, index, member)
            yield error(path, "ref_changed", f"differs from the parent message's {quoted(now.ref_id)}")


def _reused(earlier: RefLists, now: RefLists) -> Iterator[Finding]:
    for (name, known_refs), (_, refs) in zip(_lists(earlier), _lists(now), strict=True):
        known = {ref.ref_id: ref for ref in known_refs}
        for index, ref in enumerate(refs):
            before = known.get(ref.ref_id)
            if before is not None and any(getattr(before, member) != getattr(ref, member) for member in _FIXED[name]):
                path = pointer("resources", name, index, "ref_id")
                yield error(path, "ref_reused", f"{quoted(ref.ref_id)} has another meaning in this session")
