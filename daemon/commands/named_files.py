"""Checks of the files that the settings name: NATS credentials, the capability catalog, the bridge's, our key."""

from collections.abc import Mapping, Set
from typing import Final

from aghbus.daemon.bridge.adapters import find_problems
from aghbus.daemon.commands.interoperability import interoperability_notes
from aghbus.daemon.config.layers import Problem
from aghbus.daemon.config.loader import Loaded
from aghbus.daemon.nats.options import NatsOptionsError, resolve_nats_options
from aghbus.daemon.state.catalog import CatalogError, catalog_source
from aghbus.daemon.state.keys import load_signer
from aghbus.host.key_files import KeyFileError

_BRIDGE: Final = frozenset({"bridge", "sentient", "humaninloop", "agentos", "sacp"})  # tables of keys


def check_named_files(loaded: Loaded, faulty: Set[str], env: Mapping[str, str]) -> tuple[list[Problem], list[str]]:
    """Problems and notes about the files that the settings name. Nothing connects anywhere.

    Files that depend on a key in `faulty` are not checked: they would only show that problem again.
    """
    problems: list[Problem] = []
    notes: list[str] = []
    try:
        if not any(key.startswith("nats.") for key in faulty):
            options = resolve_nats_options(loaded.settings.nats, env)
            notes += options.warnings if options else ()
    except NatsOptionsError as error:
        for fault in error.problems:
            origin = loaded.origins.get(fault.key, "settings together")
            problems.append(Problem(fault.key, origin, fault.rule, fault.hint))
    signed: bool | None = None
    try:
        if not any(key.startswith("trust.") for key in faulty):
            signed = load_signer(loaded.settings, loaded.locations, env) is not None
    except KeyFileError as error:
        problems.append(Problem("trust.key_file", loaded.origins["trust.key_file"], str(error), error.hint))
    try:
        if "catalog" not in faulty:
            catalog = catalog_source(loaded.settings, loaded.locations).load()
            notes += interoperability_notes(loaded.settings, catalog, signed=signed)
    except CatalogError as error:
        problems += error.problems
    if not any(key.partition(".")[0] in _BRIDGE for key in faulty):
        problems += find_problems(loaded.settings)
    return problems, notes
