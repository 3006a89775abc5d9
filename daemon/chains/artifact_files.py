"""Nodes that apply the artifacts of another node's output (ADR-007): they are written below `humaninloop.apply_root`.

Files are written outside of the store's transactions, before the one that records it. After a crash in between they are written
again: a file that has the wanted content already is left alone.
"""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.host.file_writer import ApplyRefused, AtomicFileWriter
from aghbus.protocol.chains.chain import ChainNode
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.paths import Scope
from aghbus.protocol.chains.templates import render
from aghbus.protocol.formats.humaninloop.files import PlannedFile, kind_faults, path_faults, plan_files
from aghbus.protocol.formats.humaninloop.shape import check_output, kind_of
from aghbus.protocol.formats.model import Finding

_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Key = tuple[str, int] | tuple[str, int, int, str]
"""Run id, and the step of the visit that writes; or that of the one that asks, the sequence of its question, and the node."""


class FilesNotWritten(Exception):
    """Files have to be written before the transaction can continue. Nothing was recorded: call `ArtifactFiles.write` and retry."""

    def __init__(self, key: Key, root: str, files: tuple[PlannedFile, ...]) -> None:
        super().__init__(f"step {key[1]} of run {key[0]} writes {len(files)} files")
        self.key, self.root, self.files = key, root, files


@dataclass(slots=True, eq=False)
class ArtifactFiles:
    """Writes artifacts for chains, each once in a run."""

    settings: LiveSettings
    _outcomes: dict[Key, str] = field(default_factory=dict, init=False)  # why it failed; empty: it is written

    def applied(self, key: Key, node: ChainNode, scope: Scope) -> list[dict[str, Any]]:
        """The references to the written files of a node.

        Raises ChainError when they may not be written, and FilesNotWritten when they are not written yet.
        """
        root, files = self._planned(node, scope)
        if key not in self._outcomes:
            raise FilesNotWritten(key, root, files)
        if why := self._outcomes[key]:
            raise ChainError("apply", why)
        return [file.reference() for file in files]

    def write(self, needed: FilesNotWritten) -> None:
        """Write the files, all or none; a refusal is kept as the outcome. Blocks."""
        missing = [file for file in needed.files if not _is_there(needed.root, file)]
        try:
            with AtomicFileWriter(needed.root, missing) as application:
                application.check()
                application.stage()
                application.commit()
            self._outcomes[needed.key] = ""
        except ApplyRefused as error:
            self._outcomes[needed.key] = error.message
        except OSError as error:
            self._outcomes[needed.key] = f"humaninloop.apply_root: {needed.root}: {error.strerror}"

    def forget(self, key: Key) -> None:
        """Drop the outcome after the transaction that needed it."""
        self._outcomes.pop(key, None)

    def _planned(self, node: ChainNode, scope: Scope) -> tuple[str, tuple[PlannedFile, ...]]:
        """The configured root and the files below it. Raises ChainError."""
        top = self.settings.current.humaninloop.apply_root
        if top is None:
            raise ChainError("apply", "humaninloop.apply_root is not set: this daemon writes no files for chains")
        root = render(node.root or "", scope)
        if not isinstance(root, str):
            raise ChainError("apply", "root is not a text")
        root = root.removesuffix("/")
        if faults := path_faults(root) if root else []:
            raise ChainError("apply", f"root {faults[0][1]}")
        output = scope.get(node.apply or "")
        if not isinstance(output, dict) or kind_of(output) != "output":
            raise ChainError("apply", f"the response of node {node.apply} is no output envelope")
        _refuse(check_output(output))
        if output["recommendation"] not in node.recommendations or (
            output["recommendation"] == "proceed" and not output["success"]
        ):
            said = f"success {str(output['success']).lower()}, {output['recommendation']}"
            raise ChainError("apply", f"the output says {said}: nothing is applied (see recommendations)")
        plan = plan_files(output, root)
        _refuse((*plan.findings, *kind_faults(plan, [name.rstrip("/") for name in node.allow])))
        above = tuple(root.split("/")) if root else ()
        return top, tuple(replace(file, segments=(*above, *file.segments)) for file in plan.files)


def _refuse(findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        if finding.severity == "error":
            raise ChainError("apply", f"the output breaks rules: {finding.path}: {finding.message} ({finding.rule})")


def _is_there(root: str, file: PlannedFile) -> bool:
    """Whether the file has this content already."""
    content = file.content.encode()
    try:
        handle = os.open(Path(root, *file.segments), _FLAGS)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(handle)
        same = stat.S_ISREG(status.st_mode) and status.st_size == len(content)
        return same and stream.read(len(content) + 1) == content
