"""Layers of configuration: flags over environment over TOML files over defaults, every problem collected.

The layers do not depend on any single key. A key is declared once, as the `Key` in the annotation of a field of a frozen
Struct; its name, flag and environment variable follow from the field's place.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from aghbus.daemon.config.value_types import InvalidValue, ValueRule, ValueSource
from aghbus.protocol.base.errors import AghbusError
from aghbus.protocol.base.spelling import nearest
from aghbus.protocol.base.text import escape, shorten

ENV_PREFIX: Final = "AGHD_"

MAX_CONFIG_BYTES: Final = 1 << 20
"""A thousand times a full configuration; a larger file is not one."""

FLAG, ENV, COMMON_ENV, INSTANCE_FILE, COMMON_FILE, DEFAULT = range(6)
"""Ranks of the layers, the strongest first. COMMON_ENV are variables of other programs, such as NATS_URL."""

S = TypeVar("S", bound=msgspec.Struct)

_MAX_ECHO: Final = 80
"""Characters of a bad value that a message repeats."""


class Key(msgspec.Struct, frozen=True):
    """A key's declaration besides its type and default.

    `flag` is None for the derived flag, "" for no flag at all; `env` are variables of other programs, which rank below our own;
    `reload`: a running daemon applies a new value at SIGHUP.
    """

    rule: ValueRule
    help: str
    flag: str | None = None
    env: tuple[str, ...] = ()
    secret: bool = False
    reload: bool = False


class ConfigKey(msgspec.Struct, frozen=True):
    """One key of the settings: dotted `name`, its `Key` as `spec`, and the default (None for unset)."""

    name: str
    spec: Key
    default: Any

    @property
    def flag(self) -> str:
        """The command line flag, "" when there is none."""
        return self.spec.flag if self.spec.flag is not None else "--" + self.name.replace(".", "-").replace("_", "-")

    @property
    def env(self) -> str:
        """Our own environment variable."""
        return ENV_PREFIX + self.name.replace(".", "_").upper()


class Problem(msgspec.Struct, frozen=True):
    """One problem: the key (or file), where its value came from, the rule, and a hint ("" when obvious)."""

    key: str
    origin: str
    rule: str
    hint: str = ""

    def __str__(self) -> str:
        line = f"{self.key}: {self.rule} ({self.origin})"
        return escape(f"{line}; {self.hint}" if self.hint else line)


class ConfigError(AghbusError):
    """All problems of the configuration; `problems` is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


class Found(msgspec.Struct, frozen=True):
    """A value as given: its layer's rank, `origin` for people, and how to read it."""

    raw: Any
    rank: int
    origin: str
    source: ValueSource


def declared_keys(struct: type[msgspec.Struct], prefix: str = "") -> Iterator[ConfigKey]:
    """Every key below a settings Struct in order of declaration; a field that is itself a Struct is a TOML table."""
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        name = prefix + field.name
        if isinstance(field.default, msgspec.Struct):
            yield from declared_keys(type(field.default), f"{name}.")
        else:
            (key,) = hints[field.name].__metadata__
            yield ConfigKey(name, key, field.default)


def from_flags(keys: Iterable[ConfigKey], flags: Mapping[str, Any], folder: str, home: str) -> dict[str, Found]:
    """Values of the command line: `flags` maps key names to text, a list of texts, a boolean, or None when not given."""
    source = ValueSource(textual=True, folder=folder, home=home)
    given = ((key, flags.get(key.name)) for key in keys)
    return {key.name: Found(raw, FLAG, f"flag {key.flag}", source) for key, raw in given if raw is not None}


def from_environment(keys: Iterable[ConfigKey], env: Mapping[str, str], folder: str, home: str) -> dict[str, Found]:
    """Values of the environment; an empty variable counts as unset, as shells and service files use it."""
    source = ValueSource(textual=True, folder=folder, home=home)
    found: dict[str, Found] = {}
    for key in keys:
        for rank, variable in ((ENV, key.env), *((COMMON_ENV, name) for name in key.spec.env)):
            if env.get(variable) and key.name not in found:
                found[key.name] = Found(env[variable], rank, f"environment {variable}", source)
    return found


def unknown_variables(keys: Iterable[ConfigKey], env: Mapping[str, str], also: Iterable[str]) -> list[str]:
    """Unknown variables with our prefix, each with a suggestion when a known one is similar.

    Not an error: a container platform makes AGHD_PORT and the like when a service is called `aghd`.
    """
    known = {key.env for key in keys} | set(also)
    unknown = sorted(name for name in env if name.startswith(ENV_PREFIX) and name not in known)
    return [escape(f"environment variable {name} is not a known key{did_you_mean(name, known)}") for name in unknown]


def read_toml(path: str, *, required: bool) -> tuple[dict[str, Any], list[Problem]]:
    """The document in a TOML file, or the file's problem. A missing file is empty unless `required`."""
    rule, hint = "the file does not exist", "check --config"
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) <= MAX_CONFIG_BYTES:
            return parse_toml(data.decode("utf-8")), []
        rule, hint = f"must not be larger than {MAX_CONFIG_BYTES} bytes", ""
    except FileNotFoundError:
        if not required:
            return {}, []
    except OSError as error:
        rule, hint = f"cannot be read: {os.strerror(error.errno or 0)}", "check its permissions"
    except UnicodeDecodeError as error:
        rule, hint = f"is not UTF-8 at byte {error.start}", ""
    except (ValueError, RecursionError) as error:
        rule, hint = f"is not TOML: {error}", "texts need quotes"
    return {}, [Problem("configuration", f"file {path}", rule, hint)]


def parse_toml(text: str) -> dict[str, Any]:
    """The document in `text`. Raises ValueError, RecursionError."""
    import tomllib  # 0.15 MB that a daemon without a configuration file does not need

    return tomllib.loads(text)


def from_toml(
    keys: Sequence[ConfigKey], document: Mapping[str, Any], path: str, rank: int, home: str
) -> tuple[dict[str, Found], list[Problem]]:
    """Values of one TOML document, and a problem for each key in it that does not exist."""
    source = ValueSource(textual=False, folder=str(Path(path).parent), home=home)
    known = {key.name for key in keys}
    tables = {name.rpartition(".")[0] for name in known} - {""}
    found: dict[str, Found] = {}
    problems: list[Problem] = []
    for name, raw in _leaves(document, tables):
        if name in known:
            found[name] = Found(raw, rank, f"file {path}", source)
        elif name in tables:
            problems.append(Problem(name, f"file {path}", "must be a table", f"write [{name}]"))
        else:
            hint = did_you_mean(name, known | tables).lstrip(", ") or "aghd config show lists every key"
            problems.append(Problem(name, f"file {path}", "unknown key", hint))
    return found, problems


def merge(layers: Iterable[Mapping[str, Found]]) -> dict[str, Found]:
    """The strongest value of each key; `layers` in any order."""
    merged: dict[str, Found] = {}
    for layer in layers:
        for name, found in layer.items():
            if name not in merged or found.rank < merged[name].rank:
                merged[name] = found
    return merged


def override(found: dict[str, Found], one: str, other: str, *, conflict: str) -> list[Problem]:
    """Removes the weaker of two alternatives from `found`.

    If both have the same rank, both stay, which is a problem with the rule `conflict` unless that is empty.
    """
    if one not in found or other not in found:
        return []
    first, second = found[one], found[other]
    if first.rank == second.rank:
        return [Problem(other, second.origin, conflict, "keep one")] if conflict else []
    del found[other if first.rank < second.rank else one]
    return []


def read_values(keys: Iterable[ConfigKey], found: Mapping[str, Found]) -> tuple[dict[str, Any], list[Problem]]:
    """The typed value of every given key that obeys its rule; a problem for each that does not."""
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key in keys:
        if (given := found.get(key.name)) is None:
            continue
        try:
            values[key.name] = key.spec.rule.read(given.raw, given.source)
        except InvalidValue as error:
            got = f", not {shorten(repr(given.raw), _MAX_ECHO)}" if key.spec.rule.echo and not key.spec.secret else ""
            problems.append(Problem(key.name, given.origin, f"must be {key.spec.rule.text}{got}", error.hint))
    return values, problems


def build(struct: type[S], values: Mapping[str, Any]) -> S:
    """A settings Struct from dotted typed values; missing ones get their defaults."""
    tables: dict[str, dict[str, Any]] = {}
    fields: dict[str, Any] = {}
    for name, value in values.items():
        table, dot, rest = name.partition(".")
        (tables.setdefault(table, {}) if dot else fields)[rest or table] = value
    for field in msgspec.structs.fields(struct):
        if field.name in tables:
            fields[field.name] = build(type(field.default), tables[field.name])
    return struct(**fields)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`, did you mean X?` for the known name most similar to `name`, "" when none is."""
    near = nearest(name, known)
    return f", did you mean {near}?" if near else ""


def _leaves(document: Mapping[str, Any], tables: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, raw in document.items():
        dotted = prefix + name
        if isinstance(raw, dict) and dotted in tables:
            yield from _leaves(raw, tables, f"{dotted}.")
        else:
            yield dotted, raw
