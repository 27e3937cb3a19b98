"""Settings from the command line, the environment, a YAML file and the defaults, the strongest first."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from config.environment import config_path, found, strangers
from config.fields import Setting
from config.flags import Flags, parse
from config.settings import Settings
from config.table import ROOMS, TABLE
from config.validation import validate, wrong
from config.yaml_file import read_yaml

Warn = Callable[[str], None]


def _log_warning(text: str) -> None:
    logging.getLogger("app.config").warning(text)


def load(
    argv: Sequence[str] | None = (),
    environ: Mapping[str, str] = os.environ,
    warn: Warn = _log_warning,
) -> Settings:
    """The settings of this process; `argv` is without the program's name, None is the same as no flags.

    Raises ConfigError, whose text is one line, for anything that cannot be a setting.
    """
    flags = parse(argv or ())
    for warning in flags.warnings:
        warn(warning)
    return resolve(flags, environ, warn)


def resolve(flags: Flags, environ: Mapping[str, str], warn: Warn) -> Settings:
    """The settings that parsed `flags` and the other sources lead to; see `load`."""
    path = config_path(flags, environ)
    document = read_yaml(path, warn) if path else {}
    if unknown := strangers(environ):
        warn(f"not a setting, ignored: environment variable {', '.join(unknown)}")
    values: dict[str, dict[str, Any]] = {group: {} for group in ROOMS}
    sources: dict[str, str] = {}
    for row in TABLE:
        if (given := _given(row, flags, environ, document, f"YAML file {path}")) is not None:
            raw, sources[row.name] = given
            values[row.group][row.attribute] = _read(row, raw, sources[row.name])
    settings = Settings(**{group: ROOMS[group](**values[group]) for group in ROOMS})
    validate(settings, sources)
    return settings


def _given(
    row: Setting, flags: Flags, environ: Mapping[str, str], document: Mapping[str, Any], file: str
) -> tuple[Any, str] | None:
    """Raw value and source of a setting, from the strongest source that has it."""
    if row.name in flags.values:
        return flags.values[row.name], f"flag --{row.name}"
    if variable_set := found(row, environ):
        name, text = variable_set
        return text, f"environment variable {name}"
    return (document[row.name], file) if row.name in document else None


def _read(row: Setting, raw: Any, source: str) -> Any:
    try:
        return row.kind.read(raw)
    except ValueError as error:
        raise wrong(row, raw, source, str(error)) from None
