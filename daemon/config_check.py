"""The checks that need the files which the settings name: NATS credentials and the capability catalog."""

from collections.abc import Mapping, Set

from aghbus.daemon.catalog import CatalogError, catalog_source
from aghbus.daemon.config_layers import Problem
from aghbus.daemon.nats_options import NatsOptionsError, resolve_nats_options
from aghbus.daemon.settings_loader import Loaded


def check_named_files(loaded: Loaded, faulty: Set[str], env: Mapping[str, str]) -> tuple[list[Problem], list[str]]:
    """What is wrong with the files that the settings name, and what is only unwise. Nothing connects anywhere.

    What depends on a key in `faulty` is left alone: what it would show is only that fault again.
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
    try:
        if "catalog" not in faulty:
            catalog_source(loaded.settings, loaded.locations).load()
    except CatalogError as error:
        problems += error.problems
    return problems, notes
