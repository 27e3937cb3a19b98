"""Loads settings from command line, environment, YAML file and defaults, in this order.

To keep other starts fast, argparse is imported only for flags, and yaml only for a file.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from config.declaration import ConfigError, check_installed, suggestion
from config.plugins import settings_kind
from config.sections.engine import DEFAULT_PROFILE
from config.sections.model import OWN_LENGTH
from config.settings import Settings, Table, table_of
from config.sources import DEFAULT, Flags, Sources, Warn, ignore_warning
from config.validation import check, in_order, read

REAL_DEFAULTS: Mapping[str, object] = {
    "max-model-len": OWN_LENGTH,
    "max-num-seqs": 16,
    "max-num-batched-tokens": 512,
    "enable-kvcache": True,
    "kv-cache-size": 1024,
    "block-size": 16,
}
"""Defaults of a real engine (`engine: llm`), equal to the defaults of `EngineProcessOptions`."""
BLOCKS_OVERRIDE = "num-gpu-blocks-override"
"""Setting that sets kv-cache-size, too."""
ProfileLimits: TypeAlias = Callable[[Settings, Collection[str]], Mapping[str, object]]
"""Returns the limits of the engine of the settings' profile, by setting name.

The second argument has the names of the settings that have a source.
"""


def load(
    argv: Sequence[str],
    environ: Mapping[str, str],
    warn: Warn,
    base: type[Settings],
    profile_limits: ProfileLimits,
) -> Settings:
    """Loads the settings of this process; `argv` has no program name.

    `base` has the sections of the core and of the extensions.

    Raises:
        ConfigError: A setting is wrong, or a file or plugin cannot be read.
    """
    flags = Flags()
    if argv:
        from config.command_line import parse

        flags = parse(argv, environ, base)
    for warning in flags.warnings:
        warn(warning)
    return resolve(flags, environ, warn, base=base, profile_limits=profile_limits)


def resolve(
    flags: Flags,
    environ: Mapping[str, str],
    warn: Warn,
    base: type[Settings],
    profile_limits: ProfileLimits,
) -> Settings:
    """Returns the settings of a parsed command line, the environment and the YAML file.

    Raises:
        ConfigError: As `load`.
    """
    sources = Sources(flags, environ, warn)
    kind = flags.kind or settings_kind(sources, base)
    table = table_of(kind)
    for name in sources.document:
        if name not in table.by_name:
            hint = suggestion(name, names=table.by_name)
            raise ConfigError(f"{sources.file}: unknown key {name!r}{hint}")
    for warning in sources.strays(table):
        warn(warning)
    values, source_names = _values_from(sources, table)
    if _has_steps(values):
        decided = {name for name, source in source_names.items() if source != DEFAULT}
        limits = profile_limits(kind().changed(values), decided)
        for name, limit in limits.items():
            if name in table.by_name and name not in decided:
                values[name] = limit
                source_names[name] = f"profile {values['profile']}"
    return _settings_of(values, source_names, kind)


def load_core(environ: Mapping[str, str]) -> Settings:
    """Loads the settings of the core, without plugins; other keys of the YAML file are ignored.

    Requests have separate latencies in the result: a profile is not read, so the limits of steps
    are not known.

    Raises:
        ConfigError: A setting of the core is wrong, or the file cannot be read.
    """
    sources = Sources(Flags(), environ, ignore_warning)
    values, source_names = _values_from(sources, table_of(Settings))
    values.pop("timing", None)
    return _settings_of(values, source_names, Settings)


def _values_from(sources: Sources, table: Table) -> tuple[dict[str, object], dict[str, str]]:
    """Returns the values of the settings that have a source, and the names of their sources."""
    values: dict[str, object] = {}
    source_names: dict[str, str] = {}
    for row in in_order(table):
        candidate = sources.value_of(row)
        if candidate is not None:
            raw, source_name = candidate
            source_names[row.name] = source_name
            values[row.name] = read(row, raw, source_name)
    override = values.get(BLOCKS_OVERRIDE)
    if override is not None and source_names.get("kv-cache-size", DEFAULT) == DEFAULT:
        values["kv-cache-size"] = override
        source_names["kv-cache-size"] = source_names[BLOCKS_OVERRIDE]
    return values, source_names


def _has_steps(values: dict[str, object]) -> bool:
    """Returns whether requests share steps, and sets timing and profile, which imply each other."""
    timing = values.get("timing")
    profile = values.get("profile")
    if timing == "requests" or not (timing or profile):
        return False
    values["timing"] = "steps"
    values["profile"] = profile or DEFAULT_PROFILE
    return True


def _settings_of(
    values: dict[str, object], source_names: Mapping[str, str], kind: type[Settings]
) -> Settings:
    if values.get("engine") == "llm":
        for name, default in REAL_DEFAULTS.items():
            if source_names.get(name, DEFAULT) == DEFAULT:
                values[name] = default
    settings = kind().changed(values)
    check(settings, source_names)
    return settings


def check_extras(settings: Settings) -> None:
    """Checks that the optional parts for `settings` are installed.

    Raises:
        ConfigError: A part is not installed.
    """
    for group in settings.table.sections:
        for extra, setting in getattr(settings, group).extras().items():
            check_installed(extra, f"setting {setting}")
