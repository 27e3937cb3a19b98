"""The settings of a command line as environment variables of another process."""

import os
from collections.abc import Mapping
from typing import Any

from config.settings import Setting, Settings, variable
from config.sources import CONFIG, EMPTY, Flags, config_path


def as_environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that give a process in another folder the same `settings` without flags.

    They have the values of the command line, and every existing relative path in its absolute form.
    """
    path = config_path(flags, environ)
    variables: dict[str, str] = {}
    if path:
        variables[CONFIG] = os.path.abspath(path)
    elif CONFIG in environ:
        variables[CONFIG] = EMPTY
    for row in settings.table.rows:
        value = row.value(settings)
        portable = _portable_value(row, value)
        is_flag = any(name in flags.values for name in row.names)
        if portable != value or is_flag or row.name in flags.fallbacks:
            variables[row.env[0]] = row.write(portable) or EMPTY
            for name in map(variable, row.about.also):
                if name in environ:
                    variables[name] = ""
    return variables


def _portable_value(row: Setting, value: Any) -> Any:
    """Returns a setting's value for a process in another folder."""
    if row.about.created and isinstance(value, str):
        return os.path.abspath(value)
    if not row.about.path or value is None:
        return value
    if isinstance(value, str):
        return _absolute(value)
    if row.name == "plugin":
        # A module unless it ends in .py, even if a folder has the same name.
        return tuple(_absolute(item) if item.endswith(".py") else item for item in value)
    items = (item.rpartition("=") for item in value)
    return tuple(f"{name}{equals}{_absolute(path)}" for name, equals, path in items)


def _absolute(path: str) -> str:
    """Returns an existing relative path in its absolute form; any other text unchanged."""
    if not os.path.isabs(path) and os.path.exists(path):
        return os.path.abspath(path)
    return path
