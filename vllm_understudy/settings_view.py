"""The settings of a server, by their names with `-` or `_`."""

from __future__ import annotations

from typing import Any


class SettingsView(dict[str, Any]):
    """Settings by their names in docs/configuration.md; `max_num_seqs` is `max-num-seqs`."""

    def __missing__(self, name: str) -> Any:
        if "_" not in name:
            raise KeyError(f"the setting {name!r} does not exist (see docs/configuration.md)")
        return self[name.replace("_", "-")]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(name.replace("_", "-"))

    def get(self, name: str, default: Any = None) -> Any:
        """Returns the value of a setting, or `default` for an unknown name."""
        return super().get(name.replace("_", "-"), default)
