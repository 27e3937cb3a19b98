"""Settings that change while the server runs: all or none of a change, checked like those of the start."""

from collections.abc import Callable, Mapping

from config.declaration import ConfigError
from config.settings import Settings
from config.validation import check, read, suggestion

Subscriber = Callable[[Settings], None]
SOURCE = "change"


class LiveSettings:
    """The settings of now. Whoever depends on a live one subscribes, and is told of every change.

    One greenlet hub owns it: a change is checked as a whole, then applied as a whole.
    """

    def __init__(self, settings: Settings) -> None:
        self.current = settings
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` now and after every change with all settings. It must not raise, nor wait."""
        self._subscribers.append(subscriber)
        subscriber(self.current)

    def change(self, values: Mapping[str, object]) -> Settings:
        """Set the named settings; the values are written as in YAML. Returns the settings of now.

        Raises ConfigError as `changed` does, and then changes nothing.
        """
        self.current = self.changed(values)
        for subscriber in self._subscribers:
            subscriber(self.current)
        return self.current

    def changed(self, values: Mapping[str, object]) -> Settings:
        """Returns the settings as `change` would make them.

        Raises ConfigError for a name that is no live setting and for a value that could not be a start's.
        """
        table = self.current.table
        found: dict[str, object] = {}
        for name, raw in values.items():
            row = table.by_name.get(name)
            if row is None:
                raise ConfigError(f"unknown setting {name!r}{suggestion(name, names=table.by_name)}")
            if not row.live:
                raise ConfigError(f"setting {name}: cannot change while the server runs")
            found[name] = read(row, raw, SOURCE)
        changed = self.current.changed(found)
        check(changed, dict.fromkeys(values, SOURCE))
        return changed
