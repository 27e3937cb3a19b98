"""Changes of settings while the server runs: all or nothing, with the checks of the start."""

from collections.abc import Callable, Mapping

from config.declaration import ConfigError, suggestion
from config.settings import Settings
from config.validation import check, read

Subscriber = Callable[[Settings], None]
SOURCE = "change"


class LiveSettings:
    """Current settings. Subscribers receive every change.

    Each change is checked as a whole, then applied as a whole. For one greenlet hub only.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Calls `subscriber` with all settings, now and after every change. It must not raise or block."""
        self._subscribers.append(subscriber)
        subscriber(self.current)

    def change(self, values: Mapping[str, object]) -> Settings:
        """Sets settings by name, with values as in YAML. Changes nothing on the ConfigError of `changed`."""
        self.current = self.changed(values)
        for subscriber in self._subscribers:
            subscriber(self.current)
        return self.current

    def changed(self, values: Mapping[str, object]) -> Settings:
        """Returns the settings after a change; ConfigError for an unknown, constant or invalid one."""
        table = self.current.table
        found: dict[str, object] = {}
        for name, raw in values.items():
            row = table.by_name.get(name)
            if row is None:
                raise ConfigError(f"unknown setting {name!r}{suggestion(name, names=table.by_name)}")
            if not row.about.live:
                raise ConfigError(f"setting {name}: cannot change while the server runs")
            found[name] = read(row, raw, SOURCE)
        changed = self.current.changed(found)
        check(changed, dict.fromkeys(values, SOURCE))
        return changed
