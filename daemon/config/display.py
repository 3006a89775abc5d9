"""Configuration for people: the output of `aghd config`, the options of `aghd run`, and the table of keys in the manual."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from aghbus.daemon.config.layers import ConfigKey, Problem
from aghbus.daemon.config.loader import CONFIG_VARIABLE, Loaded
from aghbus.daemon.config.settings import KEYS, Settings, value_of
from aghbus.daemon.config.value_types import Switch, Texts
from aghbus.host.command_line import Argument
from aghbus.host.instances import stored_instances, system_instances
from aghbus.host.locations import LocationError, locate
from aghbus.protocol.base.text import escape

_GENERAL: Final = "general"
_TABLE_HEAD: Final = "| key | flag | environment | default | rule | meaning |\n|---|---|---|---|---|---|\n"


def key_options() -> list[Argument]:
    """`--config`, and an option for every key that may have one, grouped by table; values stay raw text for the layers."""
    file = Argument("--config", metavar="FILE", help=f"read only this TOML file (environment: {CONFIG_VARIABLE})")
    return [file, *(_key_option(key) for key in KEYS if key.flag)]


def _key_option(key: ConfigKey) -> Argument:
    options: dict[str, Any] = {"dest": key.name, "help": _help(key), "group": key.name.rpartition(".")[0] or _GENERAL}
    if isinstance(key.spec.rule, Switch):
        return Argument(key.flag, action="switch", **options)
    if isinstance(key.spec.rule, Texts):
        return Argument(key.flag, action="append", default=None, metavar="ITEM", **options)
    completer = _instances if key.name == "name" else None
    return Argument(key.flag, metavar="VALUE", completer=completer, **options)


def _instances(**_: Any) -> list[str]:
    """What the shell completes for `--name`."""
    try:
        own = stored_instances(locate("any", os.environ, uid=os.getuid(), home=str(Path.home())))
    except (LocationError, RuntimeError):  # without a home folder
        return []
    return sorted({*own, *(places.name for places in system_instances())})


def shown_value(settings: Settings, key: ConfigKey) -> object:
    """A key's value as TOML and JSON write it; a secret as stars, an unset one as None."""
    value = value_of(settings, key.name)
    return None if value is None else key.spec.rule.show(value)


def show_json(loaded: Loaded) -> str:
    """`{"settings": [{key, value, origin}], "paths": {…}, "files": […], "notes": […]}`, indented."""
    rows = [
        {"key": key.name, "value": shown_value(loaded.settings, key), "origin": loaded.origins[key.name]}
        for key in KEYS
    ]
    document = {"settings": rows, "paths": _paths(loaded), "files": list(loaded.files), "notes": list(loaded.notes)}
    return json.dumps(document, indent=2)


def show_text(loaded: Loaded) -> str:
    """One line for each key with its value and, when it is not the default, its origin; then paths, files and notes."""
    lines = []
    for key in KEYS:
        value, origin = shown_value(loaded.settings, key), loaded.origins[key.name]
        text = "(unset)" if value is None else escape(json.dumps(value, ensure_ascii=False))
        lines.append(f"{key.name} = {text}" + ("" if origin == "default" else f"  # {escape(origin)}"))
    lines += ["", *(f"{what}: {escape(path)}" for what, path in _paths(loaded).items())]
    lines += [f"configuration file: {escape(path)}" for path in loaded.files]
    lines += [f"note: {note}" for note in loaded.notes]
    return "\n".join(lines)


def problems_json(problems: Iterable[Problem], notes: Iterable[str] = ()) -> str:
    """`{"ok": …, "problems": [{key, origin, rule, hint}], "notes": […]}`, indented."""
    rows = [{"key": p.key, "origin": p.origin, "rule": p.rule, "hint": p.hint} for p in problems]
    return json.dumps({"ok": not rows, "problems": rows, "notes": list(notes)}, indent=2)


def problems_text(problems: Iterable[Problem]) -> str:
    """A line for each problem, hints indented below."""
    lines = []
    for problem in problems:
        lines.append(f"{escape(problem.key)}: {escape(problem.rule)}  [{escape(problem.origin)}]")
        if problem.hint:
            lines.append(f"    hint: {escape(problem.hint)}")
    return "\n".join(lines)


def keys_table() -> str:
    """The Markdown table of all keys that docs/configuration.md holds."""
    return _TABLE_HEAD + "".join(f"| {' | '.join(_cell(text) for text in _columns(key))} |\n" for key in KEYS)


def _columns(key: ConfigKey) -> tuple[str, ...]:
    default = "" if key.default in (None, "") else f"`{json.dumps(key.spec.rule.show(key.default))}`"
    variables = ", ".join(f"`{name}`" for name in (key.env, *key.spec.env))
    flag = f"`{key.flag}`" if key.flag else "none: a process list would show it"
    meaning = key.spec.help + (" (reloaded at SIGHUP)" if key.spec.reload else "")
    return (f"`{key.name}`", flag, variables, default, key.spec.rule.text, meaning)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _help(key: ConfigKey) -> str:
    default = "" if key.default in (None, "", (), False) else f" (default {_plain(key.spec.rule.show(key.default))})"
    repeat = "; entries may also be separated by commas" if isinstance(key.spec.rule, Texts) else ""
    return key.spec.help + repeat + default


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _paths(loaded: Loaded) -> dict[str, str]:
    places = loaded.locations
    return {"socket": places.socket_path, "store": places.store_path, "broker folder": places.broker_dir}
