"""Sources of values: command line, environment and file."""

from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from config.declaration import ConfigError
from config.files import MAX_FILE_SETTING, MAX_FILE_VARIABLE
from config.settings import Setting, Settings, Table, variable

Warn = Callable[[str], None]
FlagValues = dict[str, str | list[str]]
"""Flag -> its text, or the texts of a list."""
PREFIX = "SIM_"
CONFIG = "SIM_CONFIG"
DEFAULT = "default"
EMPTY = '""'
"""Text of a variable with an empty value.

Empty variables count as not set, as platforms inject them.
"""

IGNORED_SWITCHES = frozenset(
    (
        "enforce-eager",
        "add-dir-header",
        "alsologtostderr",
        "logtostderr",
        "one-output",
        "skip-headers",
        "skip-log-headers",
    )
)
REMOVED = {
    "evict-unloaded-adapters-first": "no successor, least recently used blocks are evicted first",
    "kv-cache-full": "no successor, a request waits until blocks are free",
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
        "log-backtrace-at",
        "log-dir",
        "log-file",
        "log-file-max-size",
    )
)
"""Flags of vLLM, simulators and klog that are accepted and ignored."""


class Flags(Struct):
    """Unconverted texts of the command line."""

    values: FlagValues = {}
    """Setting name -> text; a list of texts for list settings."""
    fallbacks: dict[str, str] = {}
    """Setting name -> default that replaces the setting's own."""
    names: dict[str, str] = {}
    """Setting name -> flag of another name that set the setting."""
    kind: type[Settings] | None = None
    """Kind of settings for which the words were parsed; None without words."""
    config: str | None = None
    """Path of the YAML file; empty for no file, None without the flag."""
    unread: frozenset[str] = frozenset()
    """Environment variables that have no effect on this command."""
    headless: bool = False
    """The node runs engines only: no port is opened."""
    skips_model_check: bool = False
    """The model's folder and the file of the chat template need not exist."""
    help: bool = False
    help_keyword: str = ""
    """Part of the help that is searched; empty for the whole help."""
    version: bool = False
    warnings: list[str] = []
    model_warning: str = ""
    """Warning that lists the assumptions about a model; empty without assumptions."""


class Sources:
    """Command line, environment and YAML file of one start."""

    def __init__(self, flags: Flags, environ: Mapping[str, str], warn: Warn) -> None:
        """Reads the YAML file, if any.

        Raises:
            ConfigError: The file is not a mapping, or has a repeated or a removed setting.
        """
        self.flags = flags
        self.environ = environ
        path = config_path(flags, environ) or None
        self.path = path
        self.file = f"YAML file {path}"
        self.document: dict[str, object] = {}
        if path is not None:
            self._read_file(path, warn)

    def _read_file(self, path: str, warn: Warn) -> None:
        from config.yaml_file import parse_yaml  # slow to import

        document = parse_yaml(path)
        if not isinstance(document, dict):
            raise ConfigError(f"{self.file} must map setting names to values")
        for key, value in document.items():
            name = str(key).replace("_", "-")
            if name in REMOVED:
                raise removed(name, f"{self.file}: {key}")
            if name == MAX_FILE_SETTING:
                raise ConfigError(
                    f"{self.file}: {key} applies to this file itself; use the flag or"
                    f" {MAX_FILE_VARIABLE}"
                )
            if name in IGNORED:
                warn(ignored(f"{self.file}: {key}"))
            elif name in self.document:
                raise ConfigError(f"{self.file}: {name} is specified twice")
            else:
                self.document[name] = value

    def value_of(self, row: Setting) -> tuple[object, str] | None:
        """Returns raw value and name of the strongest source with the setting, if any has it.

        Raises:
            ConfigError: One source has different values under two names.
        """
        candidates = (
            self._flag_values(row) or self._variable_values(row) or self._document_values(row)
        )
        if not candidates:
            fallback = self.flags.fallbacks.get(row.name)
            return None if fallback is None else (fallback, DEFAULT)
        if row.about.also and len(candidates) > 1:
            _check_same(row, candidates)
        return candidates[0]

    def _flag_values(self, row: Setting) -> list[tuple[object, str]]:
        values = self.flags.values
        names = self.flags.names
        return [
            (values[name], f"flag --{names.get(name, name)}")
            for name in row.names
            if name in values
        ]

    def _variable_values(self, row: Setting) -> list[tuple[object, str]]:
        values: list[tuple[object, str]] = []
        for name in row.env:
            text = _text(self.environ, name)
            if text is not None and name not in self.flags.unread:
                values.append((text, f"environment variable {name}"))
        return values

    def _document_values(self, row: Setting) -> list[tuple[object, str]]:
        values = []
        for name in row.names:
            if name not in self.document:
                continue
            value = self.document[name]
            if name not in row.about.also:
                values.append((value, self.file))
            elif value is not None:
                values.append((value, f"{self.file}, {name}"))
        return values

    def strays(self, table: Table) -> Iterator[str]:
        """Yields a warning for unknown variables with the prefix of settings.

        Raises:
            ConfigError: A variable is of a removed setting.
        """
        for name in REMOVED:
            if self.environ.get(variable(name)):
                raise removed(name, f"environment variable {variable(name)}")
        variables = {name for row in table.rows for name in row.env} | {CONFIG}
        variables.update(map(variable, REMOVED))  # empty variables count as not set
        unknown = sorted(
            name for name in self.environ if name.startswith(PREFIX) and name not in variables
        )
        if unknown:
            yield f"not a setting, ignored: environment variable {', '.join(unknown)}"


def ignore_warning(text: str) -> None:
    """Drops a warning, which a server reports when it reads the same sources."""


def ignored(written: str) -> str:
    """Returns the warning about a name in `IGNORED`; `written` is the flag or key."""
    return f"{written} is accepted and ignored"


def removed(name: str, written: str) -> ConfigError:
    """Returns the error for a name in `REMOVED`; `written` is the flag, variable or key."""
    return ConfigError(f"{written} was removed: {REMOVED[name]}")


def config_path(flags: Flags, environ: Mapping[str, str]) -> str | None:
    """Returns the path of the YAML file; empty or None without a file."""
    if flags.config is not None:
        return flags.config
    return _text(environ, CONFIG)


def _check_same(row: Setting, candidates: list[tuple[object, str]]) -> None:
    """Raises ConfigError for different values of one source under several names of a setting."""
    try:
        values = {row.read(raw) for raw, _ in candidates}
    except ValueError:
        return  # reading the strongest value reports the error
    if len(values) > 1:
        first, other = candidates[0]
        raw, source = candidates[-1]
        rule = f"must not differ from {first!r} ({other}), which sets the same"
        raise ConfigError(f"setting {row.name}: {raw!r} ({source}) {rule}")


def _text(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name) or None
    return "" if text == EMPTY else text
