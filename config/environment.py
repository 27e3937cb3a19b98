"""Settings as environment variables: reading them, and handing flags over to another process."""

import os
from collections.abc import Mapping

from config.fields import Setting
from config.flags import Flags
from config.settings import Settings
from config.table import TABLE

PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
EMPTY = '""'
"""An empty variable counts as not set (platforms inject such); these two quotes stand for an empty value."""


def variable(environ: Mapping[str, str], name: str) -> str | None:
    """The text of a variable, or None when it is not set."""
    text = environ.get(name) or None
    return "" if text == EMPTY else text


def found(row: Setting, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and text of the strongest variable that sets `row`."""
    for name in row.env:
        text = variable(environ, name)
        if text is not None:
            return name, text
    return None


def strangers(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like ours and are not."""
    known = {name for row in TABLE for name in row.env} | {CONFIG}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def config_path(flags: Flags, environ: Mapping[str, str]) -> str | None:
    """The YAML file that is named by ``--config`` or else ``SIM_CONFIG``."""
    return (flags.config if flags.config is not None else variable(environ, CONFIG)) or None


def environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to `environ` so that a process in another folder loads the same without flags.

    `settings` is what `flags` and `environ` led to. Handed over is what the command line said, and the
    absolute form of every relative path that exists, whoever named it.
    """
    path = config_path(flags, environ)
    variables = {CONFIG: os.path.abspath(path) if path else EMPTY} if path or CONFIG in environ else {}
    for row in TABLE:
        value = getattr(getattr(settings, row.group), row.attribute)
        moved = _absolute(value) if row.path and value is not None else value
        if moved != value or row.name in flags.values:
            variables[row.env[0]] = row.kind.write(moved) or EMPTY
    return variables


def _absolute(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """A path, or a list of paths that may have a name in front (`name=path`); those that exist absolute."""
    if isinstance(value, str):
        is_relative = not os.path.isabs(value) and os.path.exists(value)
        return os.path.abspath(value) if is_relative else value
    parts = (item.rpartition("=") for item in value)
    return tuple(f"{name}{equals}{_absolute(path)}" for name, equals, path in parts)
