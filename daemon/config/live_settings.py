"""The settings in force: replaced as a whole when the configuration is reloaded (SIGHUP)."""

from collections.abc import Callable

from aghbus.daemon.config.settings import Settings


class LiveSettings:
    """`current` is read anew for each decision, never kept."""

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._listeners: list[Callable[[Settings], None]] = []

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` with the new settings after each `replace`."""
        self._listeners.append(listener)

    def replace(self, settings: Settings) -> None:
        """Put `settings` in force; only reloadable keys may differ."""
        self.current = settings
        for listener in self._listeners:
            listener(settings)
