"""Settings from the command line, the environment, a YAML file and the defaults, the strongest first.

What only some starts need is imported only by them: argparse for flags, yaml for a file.
"""

import os
from collections.abc import Callable, Mapping, Sequence

from config.settings import Setting, Settings
from config.sources import Flags, config_path, found, strangers
from config.validation import ORDER, check, read

Warn = Callable[[str], None]


def _log_warning(text: str) -> None:
    import logging

    logging.getLogger("app.config").warning(text)


def load(
    argv: Sequence[str] | None = (),
    environ: Mapping[str, str] = os.environ,
    warn: Warn = _log_warning,
) -> Settings:
    """The settings of this process; `argv` is without the program's name, None is the same as no flags.

    Raises ConfigError, whose text is one line, for anything that cannot be a setting.
    """
    flags = _parsed(argv) if argv else Flags()
    for warning in flags.warnings:
        warn(warning)
    return resolve(flags, environ, warn)


def resolve(flags: Flags, environ: Mapping[str, str], warn: Warn) -> Settings:
    """The settings that parsed `flags` and the other sources lead to; see `load`."""
    path = config_path(flags, environ)
    document = _document(path, warn) if path else {}
    if unknown := strangers(environ):
        warn(f"not a setting, ignored: environment variable {', '.join(unknown)}")
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for row in ORDER:
        if (given := _given(row, flags, environ, document, f"YAML file {path}")) is not None:
            raw, sources[row.name] = given
            values[row.name] = read(row, raw, sources[row.name])
    settings = Settings().changed(values)
    check(settings, sources)
    return settings


def _given(
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
    return (flags.fallbacks[row.name], "default") if row.name in flags.fallbacks else None


def _parsed(argv: Sequence[str]) -> Flags:
    from config.flags import parse

    return parse(argv)


def _document(path: str, warn: Warn) -> dict[str, object]:
    from config.yaml_file import read_yaml

    return read_yaml(path, warn)
