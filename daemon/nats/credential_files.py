"""The files that NATS options name: checked for existence, form and mode; all problems are collected."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from aghbus.host.files import is_exposed

_MAX_BYTES = 65_536  # a credentials file is 1 to 4 KiB; more is the wrong file


class NatsProblem(msgspec.Struct, frozen=True):
    """One problem of one key: the rule and a hint. Never contains a secret."""

    key: str
    rule: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.rule} ({self.hint})" if self.hint else f"{self.key}: {self.rule}"


class NatsFiles:
    """Reads the named files; collects `problems` and `warnings`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env` gives HOME for a leading `~/`."""
        self._home = env.get("HOME", "")
        self.problems: list[NatsProblem] = []
        self.warnings: list[str] = []

    def problem(self, key: str, rule: str, hint: str = "") -> None:
        """Notes one problem."""
        self.problems.append(NatsProblem(key, rule, hint))

    def path(self, text: str) -> Path:
        """The path that `text` names, `~/` replaced by the home folder."""
        return Path(self._home, text[2:]) if text.startswith("~/") and self._home else Path(text)

    def text(self, key: str, path: Path, *, secret: bool = True) -> str | None:
        """The file's UTF-8 text without white space at its ends; None, and a problem noted, when it cannot be read."""
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
                status = os.fstat(file.fileno())
        except OSError as error:
            self.problem(key, f"{path}: {error.strerror}", "name a file that this user can read")
            return None
        if len(raw) > _MAX_BYTES:
            self.problem(key, f"{path} is larger than {_MAX_BYTES} bytes", "check the path")
            return None
        if secret and is_exposed(status):
            self.warnings.append(f"{key}: {path} can be read by others; chmod 600 {path}")
        try:
            text = raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            self.problem(key, f"{path} is not text", "check the path")
            return None
        if not text:
            self.problem(key, f"{path} is empty")
            return None
        return text

    def containing(self, key: str, text: str | None, *marks: str, secret: bool = True) -> str | None:
        """The absolute path of the file that `text` names, if it contains each of `marks`."""
        if not text:
            return None
        path = self.path(text).absolute()
        found = self.text(key, path, secret=secret)
        if found is None:
            return None
        missing = [mark for mark in marks if mark not in found]
        if missing:
            self.problem(key, f"{path} does not contain {missing[0]!r}", "check the path")
            return None
        return str(path)

    def secret_line(self, key: str, text: str | None) -> str | None:
        """The one line of the file that `text` names."""
        line = self.text(key, self.path(text)) if text else None
        if line is not None and not line.isprintable():
            self.problem(key, "the file must hold one line of printable text")
            return None
        return line
