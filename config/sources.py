"""Sources of values: command line, environment and file; and conversion of a command line to variables."""

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from config.declaration import ConfigError
from config.settings import Setting, Settings, Table, variable

PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
DEFAULT = "default"
EMPTY = '""'
"""Text of a variable with an empty value. Empty variables count as not set, as platforms inject them."""

IGNORED_SWITCHES = frozenset(
    {"enforce-eager"}
    | {"add-dir-header", "alsologtostderr", "logtostderr", "one-output", "skip-headers", "skip-log-headers"}
)
RETIRED = {
    "kv-index-redis-timeout": "Redis has 1 s to answer",
    "kv-index-shards": "there are four queues, and answers do not depend on that",
    "kv-index-tokenizer-timeout": "a prompt has 10 s to be tokenized, with loading the tokenizer",
    "kv-index-tokenizer-workers": "five prompts are tokenized at the same time",
    "worker-connections": "16,384 connections are served, or as many as open files allow",
}
"""Removed setting of version 0.1 -> present behavior. Accepted, with a warning, until version 0.3."""
IGNORED = (
    frozenset(RETIRED)
    | IGNORED_SWITCHES
    | frozenset(
        {"mm-processor-kwargs", "ec-transfer-config", "zmq-max-connect-attempts"}
        | {"vmodule", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "stderrthreshold"}
    )
)
"""Retired settings, and flags of vLLM, simulators and klog, that are accepted and ignored."""


class Flags(Struct):
    """Unconverted texts of the command line."""

    values: dict[str, str | list[str]] = {}
    """Setting name -> text; a list of texts for list settings."""
    fallbacks: dict[str, str] = {}
    """Setting name -> default that replaces the setting's own."""
    names: dict[str, str] = {}
    """Setting name -> flag of another name that set the setting."""
    kind: type[Settings] | None = None
    """Kind of settings for which the words were parsed; None without words."""
    config: str | None = None
    help: bool = False
    version: bool = False
    warnings: list[str] = []


def ignored(name: str, written: str) -> str:
    """Returns the warning about a name in `IGNORED`; `written` is the flag, variable or key."""
    reason = f": {RETIRED[name]}" if name in RETIRED else ""
    return f"{written} is accepted and ignored{reason}"


def given(
    row: Setting, flags: Flags, environ: Mapping[str, str], document: Mapping[str, object], file: str
) -> tuple[object, str] | None:
    """Returns raw value and name of the strongest source with the setting; None without a source.

    Raises ConfigError if one source has different values under two names of the setting.
    """
    for source in (_flags(row, flags), _variables(row, environ), _keys(row, document, file)):
        if found := [*source]:
            _check_same(row, found)
            return found[0]
    return (flags.fallbacks[row.name], DEFAULT) if row.name in flags.fallbacks else None


Raw = tuple[object, str]
"""Unconverted value, and name of its source."""


def _flags(row: Setting, flags: Flags) -> Iterator[Raw]:
    for name in row.names:
        if name in flags.values:
            yield flags.values[name], f"flag --{flags.names.get(name, name)}"


def _variables(row: Setting, environ: Mapping[str, str]) -> Iterator[Raw]:
    for name in row.env:
        if (text := _text(environ, name)) is not None:
            yield text, f"environment variable {name}"


def _keys(row: Setting, document: Mapping[str, object], file: str) -> Iterator[Raw]:
    for name in row.names:
        if name in document and not (name in row.also and document[name] is None):
            yield document[name], file if name == row.name else f"{file}, {name}"


def _check_same(row: Setting, found: Sequence[Raw]) -> None:
    if not row.also or len(found) == 1:
        return
    try:
        values = {row.read(raw) for raw, _ in found}
    except ValueError:  # reading the strongest value reports the error
        return
    if len(values) > 1:
        (first, other), (raw, source) = found[0], found[-1]
        rule = f"must not differ from {first!r} ({other}), which sets the same"
        raise ConfigError(f"setting {row.name}: {raw!r} ({source}) {rule}")


def strangers(environ: Mapping[str, str], table: Table) -> list[str]:
    """Returns variables with our prefix that are not settings."""
    known = {name for row in table.rows for name in row.env} | {CONFIG}
    known |= {variable(name) for name in RETIRED}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def retired(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each variable of a retired setting."""
    for name in RETIRED:
        if environ.get(variable(name)):
            yield ignored(name, f"environment variable {variable(name)}")


def config_path(flags: Flags, environ: Mapping[str, str]) -> str | None:
    """Returns the YAML file of ``--config``, else of ``SIM_CONFIG``."""
    return (flags.config if flags.config is not None else _text(environ, CONFIG)) or None


def as_environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that give a process in another folder the same settings without flags.

    `settings` are the settings of `flags` and `environ`. The variables have the values of the command line,
    and the absolute form of every existing relative path from any source.
    """
    path = config_path(flags, environ)
    variables = {CONFIG: os.path.abspath(path) if path else EMPTY} if path or CONFIG in environ else {}
    for row in settings.table.rows:
        value = row.value(settings)
        moved = value
        if row.path and value is not None:
            moved = _moved_files(value) if row.name == "plugin" else _moved(value)
        if moved != value or row.name in flags.fallbacks or any(name in flags.values for name in row.names):
            variables[row.env[0]] = row.write(moved) or EMPTY
            variables |= {name: "" for name in map(variable, row.also) if name in environ}
    return variables


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """Returns the text of a variable; None for a variable that is not set."""
    text = environ.get(name) or None
    return "" if text == EMPTY else text


def _moved(value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Makes existing paths absolute: a path, or a list of paths, each with an optional name (`name=path`)."""
    if isinstance(value, str):
        return _absolute(value)
    parts = (item.rpartition("=") for item in value)
    return tuple(f"{name}{equals}{_absolute(path)}" for name, equals, path in parts)


def _absolute(path: str) -> str:
    is_relative = not os.path.isabs(path) and os.path.exists(path)
    return os.path.abspath(path) if is_relative else path


def _moved_files(items: tuple[str, ...]) -> tuple[str, ...]:
    """Makes plugin files absolute; modules stay unchanged, even if a folder has the same name."""
    return tuple(_absolute(item) if item.endswith(".py") else item for item in items)
