"""What the command line and the environment said, and how a command line is handed over as environment."""

import os
from collections.abc import Mapping

from msgspec import Struct

from config.settings import Setting, Settings, Table

PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
DEFAULT = "default"
EMPTY = '""'
"""An empty variable counts as not set (platforms inject such); these two quotes stand for an empty value."""

IGNORED_SWITCHES = frozenset(
    {"enforce-eager"}
    | {"add-dir-header", "alsologtostderr", "logtostderr", "one-output", "skip-headers", "skip-log-headers"}
)
IGNORED = IGNORED_SWITCHES | frozenset(
    {"mm-processor-kwargs", "ec-transfer-config", "zmq-max-connect-attempts"}
    | {"vmodule", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "stderrthreshold"}
)
"""Flags of vLLM, of simulators and of klog that are accepted and change nothing."""


class Flags(Struct):
    """What the command line said, not yet read as values."""

    values: dict[str, str | list[str]] = {}
    """Setting name to its text; a list for list settings."""
    fallbacks: dict[str, str] = {}
    """What holds when nothing else says anything: other defaults than the settings' own."""
    names: dict[str, str] = {}
    """Setting name to the flag that it was given by, where that has another name."""
    kind: type[Settings] | None = None
    """What the words were taken for; None where there were none, and so no plugin was looked for."""
    config: str | None = None
    help: bool = False
    version: bool = False
    warnings: list[str] = []


def found(row: Setting, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and text of the strongest variable that sets `row`."""
    for name in row.env:
        text = _text(environ, name)
        if text is not None:
            return name, text
    return None


def given(
    row: Setting, flags: Flags, environ: Mapping[str, str], document: Mapping[str, object], file: str
) -> tuple[object, str] | None:
    """Raw value and source of a setting, from the strongest source that has it."""
    if row.name in flags.values:
        return flags.values[row.name], f"flag --{flags.names.get(row.name, row.name)}"
    if variable := found(row, environ):
        name, text = variable
        return text, f"environment variable {name}"
    if row.name in document:
        return document[row.name], file
    return (flags.fallbacks[row.name], DEFAULT) if row.name in flags.fallbacks else None


def strangers(environ: Mapping[str, str], table: Table) -> list[str]:
    """Variables that look like ours and are not."""
    known = {name for row in table.rows for name in row.env} | {CONFIG}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def config_path(flags: Flags, environ: Mapping[str, str]) -> str | None:
    """The YAML file that is named by ``--config`` or else ``SIM_CONFIG``."""
    return (flags.config if flags.config is not None else _text(environ, CONFIG)) or None


def as_environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Variables to add to `environ` so that a process in another folder loads the same without flags.

    `settings` is what `flags` and `environ` led to. Handed over is what the command line said, and the
    absolute form of every relative path that exists, whoever named it.
    """
    path = config_path(flags, environ)
    variables = {CONFIG: os.path.abspath(path) if path else EMPTY} if path or CONFIG in environ else {}
    for row in settings.table.rows:
        value = row.value(settings)
        moved = value
        if row.path and value is not None:
            moved = _moved_files(value) if row.name == "plugin" else _moved(value)
        if moved != value or row.name in flags.values or row.name in flags.fallbacks:
            variables[row.env[0]] = row.write(moved) or EMPTY
    return variables


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """The text of a variable, or None when it is not set."""
    text = environ.get(name) or None
    return "" if text == EMPTY else text


def _moved(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """A path, or a list of paths that may have a name in front (`name=path`); those that exist absolute."""
    if isinstance(value, str):
        return _absolute(value)
    parts = (item.rpartition("=") for item in value)
    return tuple(f"{name}{equals}{_absolute(path)}" for name, equals, path in parts)


def _absolute(path: str) -> str:
    is_relative = not os.path.isabs(path) and os.path.exists(path)
    return os.path.abspath(path) if is_relative else path


def _moved_files(items: tuple[str, ...]) -> tuple[str, ...]:
    """Files absolute, modules as they are, also where a folder has the name of one."""
    return tuple(_absolute(item) if item.endswith(".py") else item for item in items)
