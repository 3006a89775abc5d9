"""The active settings: replaced as a whole when the configuration is reloaded (SIGHUP)."""

from collections.abc import Callable

from aghbus.daemon.config.layers import build
from aghbus.daemon.config.settings import KEYS, SettingChanges, Settings, reloadable_changes, value_of


class LiveSettings:
    """`current` is read again for each decision, never kept."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._listeners: list[Callable[[Settings], None]] = []

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` with the new settings after each `replace`."""
        self._listeners.append(listener)

    def reload(self, new: Settings) -> SettingChanges:
        """Activate the reloadable keys of `new`; returns the changed keys, with those that need a restart."""
        changes = reloadable_changes(self.current, new)
        values = {key.name: value_of(new if key.spec.reload else self.current, key.name) for key in KEYS}
        self.replace(build(Settings, values))
        return changes

    def replace(self, settings: Settings) -> None:
        """Activate `settings`; only reloadable keys may differ."""
        self.current = settings
        for listener in self._listeners:
            listener(settings)
