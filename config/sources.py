"""Sources of values:

command line, environment and file; and conversion of a command line to variables.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from config.declaration import ConfigError
from config.settings import Setting, Settings, Table, variable

Warn = Callable[[str], None]
PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
DEFAULT = "default"
EMPTY = '""'
"""Text of a variable with an empty value.

Empty variables count as not set, as platforms inject them.
"""

IGNORED_SWITCHES = frozenset(
    ("enforce-eager", "add-dir-header", "alsologtostderr", "logtostderr", "one-output")
    + ("skip-headers", "skip-log-headers")
)
REMOVED = {
    "evict-unloaded-adapters-first": "no successor, least recently used blocks are evicted first",
    "kv-cache-full": "no successor, a request waits for free blocks",
    "kv-events-replay-layout": "no successor, replays have vLLM's topic frame",
    "kv-index-fetch-tokenizers": "use kv-index-tokenizers with the entry hub",
    "kv-index-hash": "no successor, keys are XXH64",
    "kv-index-max-message-mb": "no successor, the limit is 1 MiB",
    "kv-index-memory-mb": "use kv-index-size, which is in MiB if kv-index-backend is cost-aware",
    "kv-index-pod-grace": "no successor, a pod is forgotten 30 s after its last connection",
    "kv-index-redis-prefix": "use kv-index-redis-url with the number of another database",
    "kv-index-redis-timeout": "no successor, the timeout is 1 s",
    "kv-index-refresh-interval": "no successor, kv-index-pods is read every 2 s",
    "kv-index-repeats": "no successor, a block that is announced again is one more copy",
    "kv-index-shards": "no successor, there are four queues",
    "kv-index-tokenizer-dir": "use kv-index-tokenizers with the folder",
    "kv-index-tokenizer-timeout": "no successor, the timeout is 10 s",
    "kv-index-tokenizer-workers": "no successor, five prompts are tokenized at the same time",
    "kv-index-unknown-tier-weight": "use kv-index-tier-weights; other tiers count 0.5",
    "otlp-service-name": "use the environment variable OTEL_SERVICE_NAME",
    "read-timeout": "use client-timeout",
    "reasoning-tokens": "no successor, the mean is 24 tokens",
    "replay-match": "use replay-miss: nearest",
    "replay-speed": "no successor, answers are sent at the recorded pace",
    "self-signed-names": "use allowed-hosts",
    "strict-tool-schemas": "no successor, a tool that is strict says so in its definition",
    "tool-call-room": "no successor, the limit is 96 tokens",
    "worker-connections": "no successor, the limit is 16,384 connections, or the open files",
    "write-timeout": "use client-timeout",
}
"""Removed setting -> its successor. A server that is started with such a setting exits."""
IGNORED = IGNORED_SWITCHES.union(
    (
        "mm-processor-kwargs",
        "ec-transfer-config",
        "zmq-max-connect-attempts",
        "vmodule",
        "stderrthreshold",
    ),
    ("log-backtrace-at", "log-dir", "log-file", "log-file-max-size"),
)
"""Flags of vLLM, simulators and klog that are accepted and ignored."""


Given = dict[str, str | list[str]]


class Flags(Struct):
    """Unconverted texts of the command line."""

    values: Given = {}
    """Setting name -> text; a list of texts for list settings."""
    fallbacks: dict[str, str] = {}
    """Setting name -> default that replaces the setting's own."""
    names: dict[str, str] = {}
    """Setting name -> flag of another name that set the setting."""
    kind: type[Settings] | None = None
    """Kind of settings for which the words were parsed; None without words."""
    config: str | None = None
    unread: frozenset[str] = frozenset()
    """Environment variables that have no effect on this command."""
    headless: bool = False
    """The node runs engines only: no port is opened."""
    help: bool = False
    version: bool = False
    warnings: list[str] = []


class Sources:
    """Command line, environment and YAML file of one start."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], warn: Warn) -> None:
        """Raises ConfigError for a file that is no mapping, or has a setting twice or a removed one."""
        self.flags, self.environ = flags, environ
        path = (flags.config if flags.config is not None else _text(environ, CONFIG)) or None
        self.path, self.file, self.document = path, f"YAML file {path}", dict[str, object]()
        if path is None:
            return
        from config.yaml_file import parse_yaml  # slow to import

        document = parse_yaml(path)
        if not isinstance(document, dict):
            raise ConfigError(f"{self.file}: must be a mapping of setting names to values")
        for key, value in document.items():
            name = str(key).replace("_", "-")
            if name in REMOVED:
                raise removed(name, f"{self.file}: {key}")
            if name in IGNORED:
                warn(ignored(f"{self.file}: {key}"))
            elif name in self.document:
                raise ConfigError(f"{self.file}: {name} is given twice")
            else:
                self.document[name] = value

    def of(self, row: Setting) -> tuple[object, str] | None:
        """Returns raw value and name of the strongest source with the setting; None without a
        source.

        ConfigError if one source has different values under two names.
        """
        flags, document, names = self.flags, self.document, row.names
        variables = [name for name in row.env if name not in flags.unread]
        texts = ((_text(self.environ, name), f"environment variable {name}") for name in variables)
        found: list[tuple[object, str]]
        found = [
            (flags.values[n], f"flag --{flags.names.get(n, n)}") for n in names if n in flags.values
        ]
        found = found or [(text, source) for text, source in texts if text is not None]
        found = found or [
            (document[name], self.file if name == row.name else f"{self.file}, {name}")
            for name in names
            if name in document and not (name in row.about.also and document[name] is None)
        ]
        if not found:
            return (flags.fallbacks[row.name], DEFAULT) if row.name in flags.fallbacks else None
        same: set[object] = set()
        with suppress(ValueError):  # reading the strongest value reports the error
            same = {row.read(raw) for raw, _ in found if row.about.also and len(found) > 1}
        if len(same) > 1:
            (first, other), (raw, source) = found[0], found[-1]
            rule = f"must not differ from {first!r} ({other}), which sets the same"
            raise ConfigError(f"setting {row.name}: {raw!r} ({source}) {rule}")
        return found[0]

    def strays(self, table: Table) -> Iterator[str]:
        """Yields a warning for unknown variables with our prefix.

        Raises:
            ConfigError: A variable is of a removed setting.
        """
        for name in REMOVED:
            if self.environ.get(variable(name)):
                raise removed(name, f"environment variable {variable(name)}")
        known = {name for row in table.rows for name in row.env} | {CONFIG}
        known.update(map(variable, REMOVED))  # empty variables count as not set
        if unknown := sorted(
            name for name in self.environ if name.startswith(PREFIX) and name not in known
        ):
            yield f"not a setting, ignored: environment variable {', '.join(unknown)}"


def ignored(written: str) -> str:
    """Returns the warning about a name in `IGNORED`; `written` is the flag or key."""
    return f"{written} is accepted and ignored"


def removed(name: str, written: str) -> ConfigError:
    """Returns the error for a name in `REMOVED`; `written` is the flag, variable or key."""
    return ConfigError(f"{written} was removed: {REMOVED[name]}")


def as_environment(flags: Flags, settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables that give a process in another folder the same `settings` without flags.

    They have the values of the command line, and every existing relative path in its absolute form.
    """
    path = flags.config if flags.config is not None else _text(environ, CONFIG)
    variables = (
        {CONFIG: os.path.abspath(path) if path else EMPTY} if path or CONFIG in environ else {}
    )
    for row in settings.table.rows:
        value = row.value(settings)
        moved = value
        if row.about.created and isinstance(value, str):
            moved = os.path.abspath(value)
        elif row.about.path and value is not None:
            moved = _absolute(row.name, value)
        if (
            moved != value
            or row.name in flags.fallbacks
            or any(name in flags.values for name in row.names)
        ):
            variables[row.env[0]] = row.write(moved) or EMPTY
            variables |= {name: "" for name in map(variable, row.about.also) if name in environ}
    return variables


def _text(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name) or None
    return "" if text == EMPTY else text


def _absolute(setting: str, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
    """Makes existing paths absolute:

    a path, or a list of paths, each with an optional name (`name=path`).
    """
    if isinstance(value, str):
        return (
            os.path.abspath(value) if not os.path.isabs(value) and os.path.exists(value) else value
        )
    if setting == "plugin":  # a module unless it ends in .py, even if a folder has the same name
        return tuple(str(_absolute("", item)) if item.endswith(".py") else item for item in value)
    items = (item.rpartition("=") for item in value)
    return tuple(f"{name}{equals}{_absolute(setting, path)}" for name, equals, path in items)
