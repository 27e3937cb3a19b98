"""Settings that change while the server runs: all or none of a change, checked like those of the start."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from config.errors import ConfigError
from config.flags import suggestion
from config.settings import Settings
from config.table import BY_NAME
from config.validation import validate, wrong

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

    def change(self, values: Mapping[str, Any]) -> Settings:
        """Set the named settings; the values are written as in YAML. Returns the settings of now.

        Raises ConfigError as `changed` does, and then changes nothing.
        """
        self.current = self.changed(values)
        for subscriber in self._subscribers:
            subscriber(self.current)
        return self.current

    def changed(self, values: Mapping[str, Any]) -> Settings:
        """What `change` would make of the settings.

        Raises ConfigError for a name that is no live setting and for a value that could not be a start's.
        """
        rooms: dict[str, dict[str, Any]] = {}
        for name, raw in values.items():
            row = BY_NAME.get(name)
            if row is None:
                raise ConfigError(f"unknown setting {name!r}{suggestion(name)}")
            if not row.live:
                raise ConfigError(f"setting {name}: cannot change while the server runs")
            try:
                rooms.setdefault(row.group, {})[row.attribute] = row.kind.read(raw)
            except ValueError as error:
                raise wrong(row, raw, SOURCE, str(error)) from None
        changed = replace(
            self.current,
            **{group: replace(getattr(self.current, group), **found) for group, found in rooms.items()},
        )
        validate(changed, dict.fromkeys(values, SOURCE))
        return changed
