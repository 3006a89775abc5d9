"""The settings in force: replaced as a whole when the configuration is reloaded (SIGHUP)."""

from collections.abc import Callable

import msgspec

from aghbus.daemon.config.settings import Changes, Settings, reloadable_changes


class LiveSettings:
    """`current` is read anew for each decision, never kept."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._listeners: list[Callable[[Settings], None]] = []

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` with the new settings after each `replace`."""
        self._listeners.append(listener)

    def reload(self, new: Settings) -> Changes:
        """Put the reloadable keys of `new` in force; returns the changed keys, with those that need a restart."""
        changes = reloadable_changes(self.current, new)
        self.replace(_with_keys(self.current, new, changes.now))
        return changes

    def replace(self, settings: Settings) -> None:
        """Put `settings` in force; only reloadable keys may differ."""
        self.current = settings
        for listener in self._listeners:
            listener(settings)


def _with_keys(old: Settings, new: Settings, names: tuple[str, ...]) -> Settings:
    """`old` with the keys `names` (dotted) of `new`."""
    values, fresh = msgspec.to_builtins(old), msgspec.to_builtins(new)
    for name in names:
        *tables, key = name.split(".")
        into, out_of = values, fresh
        for table in tables:
            into, out_of = into[table], out_of[table]
        into[key] = out_of[key]
    return msgspec.convert(values, Settings)
