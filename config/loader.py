"""Loads settings from command line, environment, YAML file and defaults, in this order.

To keep other starts fast, argparse is imported only for flags, and yaml only for a file.
"""

from collections.abc import Mapping, Sequence

from config.declaration import ConfigError, check_installed, suggestion
from config.plugins import settings_kind
from config.sections.model import OWN_LENGTH
from config.settings import Settings, table_of
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


def load(
    argv: Sequence[str],
    environ: Mapping[str, str],
    warn: Warn,
    base: type[Settings],
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
    return resolve(flags, environ, warn, base)


def resolve(flags: Flags, environ: Mapping[str, str], warn: Warn, base: type[Settings]) -> Settings:
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
    return _settings_from(sources, kind)


def load_core(environ: Mapping[str, str]) -> Settings:
    """Loads the settings of the core, without plugins; other keys of the YAML file are ignored.

    Raises:
        ConfigError: A setting of the core is wrong, or the file cannot be read.
    """
    return _settings_from(Sources(Flags(), environ, ignore_warning), Settings)


def _settings_from(sources: Sources, kind: type[Settings]) -> Settings:
    values: dict[str, object] = {}
    source_names: dict[str, str] = {}
    for row in in_order(table_of(kind)):
        candidate = sources.value_of(row)
        if candidate is not None:
            raw, source_name = candidate
            source_names[row.name] = source_name
            values[row.name] = read(row, raw, source_name)
    _apply_profile(values, source_names)
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


def _apply_profile(values: dict[str, object], source_names: dict[str, str]) -> None:
    """Adds the limits of the profile's engine, for settings without a source."""
    timing = values.get("timing", "")
    profile = values.get("profile", "")
    if timing == "requests" or not (timing or profile):
        return
    from config.datasheet import chosen_profile  # and YAML
    from config.profile import DEFAULT_PROFILE

    profile_name = str(profile or DEFAULT_PROFILE)
    values["timing"] = "steps"
    values["profile"] = profile_name
    limits = {}
    for name in ("max-num-seqs", "max-num-batched-tokens", "block-size"):
        value = values.get(name)
        if source_names.get(name, DEFAULT) != DEFAULT and isinstance(value, int):
            limits[name.replace("-", "_")] = value
    core_names = table_of(Settings).by_name
    settings = Settings().changed(
        {name: value for name, value in values.items() if name in core_names}
    )
    for name, limit in chosen_profile(settings, limits).settings().items():
        if source_names.get(name, DEFAULT) == DEFAULT:
            values[name] = limit
            source_names[name] = f"profile {profile_name}"
