"""Values of the command line, the environment and the file, and a command line handed over as environment."""

import os
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from config.declaration import ConfigError
from config.settings import Setting, Settings, Table, variable

PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
DEFAULT = "default"
EMPTY = '""'
"""An empty variable counts as not set (platforms inject such); these two quotes stand for an empty value."""

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
"""Settings of version 0.1 that are gone, and what holds instead. They are accepted until version 0.3."""
IGNORED = (
    frozenset(RETIRED)
    | IGNORED_SWITCHES
    | frozenset(
        {"mm-processor-kwargs", "ec-transfer-config", "zmq-max-connect-attempts"}
        | {"vmodule", "log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "stderrthreshold"}
    )
)
"""Flags of vLLM, of simulators and of klog, and retired settings, that are accepted and change nothing."""


class Flags(Struct):
    """Texts of the command line, not yet read as values."""

    values: dict[str, str | list[str]] = {}
    """Setting name to its text; a list for list settings."""
    fallbacks: dict[str, str] = {}
    """Defaults that replace the settings' own."""
    names: dict[str, str] = {}
    """Setting name to the flag that it was given by, where that has another name."""
    kind: type[Settings] | None = None
    """Kind of settings that the words were parsed for; None without words."""
    config: str | None = None
    help: bool = False
    version: bool = False
    warnings: list[str] = []


def ignored(name: str, written: str) -> str:
    """Returns the warning about a name of `IGNORED`, `written` in this way."""
    reason = f": {RETIRED[name]}" if name in RETIRED else ""
    return f"{written} is accepted and ignored{reason}"


def given(
    row: Setting, flags: Flags, environ: Mapping[str, str], document: Mapping[str, object], file: str
) -> tuple[object, str] | None:
    """Raw value and source of a setting, from the strongest source that has it.

    ConfigError where one source says different things by two names of the setting.
    """
    for source in (_flags(row, flags), _variables(row, environ), _keys(row, document, file)):
        if found := [*source]:
            _check_same(row, found)
            return found[0]
    return (flags.fallbacks[row.name], DEFAULT) if row.name in flags.fallbacks else None


Raw = tuple[object, str]
"""A value as it was given, and its source."""


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
    except ValueError:  # which is told when the strongest is read
        return
    if len(values) > 1:
        (first, other), (raw, source) = found[0], found[-1]
        rule = f"must not differ from {first!r} ({other}), which sets the same"
        raise ConfigError(f"setting {row.name}: {raw!r} ({source}) {rule}")


def strangers(environ: Mapping[str, str], table: Table) -> list[str]:
    """Variables that look like ours and are not."""
    known = {name for row in table.rows for name in row.env} | {CONFIG}
    known |= {variable(name) for name in RETIRED}
    return sorted(name for name in environ if name.startswith(PREFIX) and name not in known)


def retired(environ: Mapping[str, str]) -> Iterator[str]:
    """Yields a warning for each variable of a setting that is gone."""
    for name in RETIRED:
        if environ.get(variable(name)):
            yield ignored(name, f"environment variable {variable(name)}")


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
        if moved != value or row.name in flags.fallbacks or any(name in flags.values for name in row.names):
            variables[row.env[0]] = row.write(moved) or EMPTY
            variables |= {name: "" for name in map(variable, row.also) if name in environ}
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
