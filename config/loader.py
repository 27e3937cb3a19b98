"""Loads settings from command line, environment, YAML file and defaults, the strongest source
first.

To keep other starts fast, argparse is imported only for flags, and yaml only for a file.
"""

import logging
import os
from collections.abc import Mapping, Sequence

from config.declaration import ConfigError, check_installed, suggestion
from config.plugins import settings_kind
from config.sections.model import OWN_LENGTH
from config.settings import BY_NAME, Settings, table_of
from config.sources import DEFAULT, Flags, Sources, Warn
from config.validation import check, in_order, read

LOG = logging.getLogger("app.config")
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
    argv: Sequence[str] | None = (),
    environ: Mapping[str, str] = os.environ,
    warn: Warn = LOG.warning,
) -> Settings:
    """Loads the settings of this process; `argv` has no program name. May raise ConfigError."""
    flags = Flags()
    if argv:
        from config.command_line import parse

        flags = parse(argv, environ)
    for warning in flags.warnings:
        warn(warning)
    return resolve(flags, environ, warn)


def resolve(flags: Flags, environ: Mapping[str, str], warn: Warn) -> Settings:
    given = Sources(flags, environ, warn)
    kind = flags.kind or settings_kind(given)
    table = table_of(kind)
    for name in given.document:
        if name not in table.by_name:
            hint = suggestion(name, names=table.by_name)
            raise ConfigError(f"{given.file}: unknown key {name!r}{hint}")
    for warning in given.strays(table):
        warn(warning)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for row in in_order(table):
        if (found := given.of(row)) is not None:
            raw, sources[row.name] = found
            values[row.name] = read(row, raw, sources[row.name])
    _take_profile(values, sources)
    if values.get("engine") == "llm":
        named = {name for name, source in sources.items() if source != DEFAULT}
        values |= {name: value for name, value in REAL_DEFAULTS.items() if name not in named}
    settings = kind().changed(values)
    check(settings, sources)
    return settings


def check_extras(settings: Settings) -> None:
    if settings.server.speaks_grpc:
        check_installed("grpc", "setting grpc")
    if settings.tracing.otlp_traces_endpoint is not None:
        check_installed("tracing", "setting otlp-traces-endpoint")
    if settings.engine.is_real:
        check_installed("engine", "setting engine: 'llm'")


def _take_profile(values: dict[str, object], sources: dict[str, str]) -> None:
    """Adds the limits of the profile's engine, for settings without a source."""
    timing, profile = values.get("timing", ""), values.get("profile", "")
    if timing == "requests" or not (timing or profile):
        return
    from config.datasheet import chosen_profile  # and YAML
    from config.profile import DEFAULT_PROFILE

    name = str(profile or DEFAULT_PROFILE)
    values |= {"timing": "steps", "profile": name}
    limits = {
        name.replace("-", "_"): value
        for name in ("max-num-seqs", "max-num-batched-tokens", "block-size")
        if sources.get(name, DEFAULT) != DEFAULT and isinstance(value := values[name], int)
    }
    settings = Settings().changed({n: v for n, v in values.items() if n in BY_NAME})
    chosen = chosen_profile(settings, limits)
    for setting, value in chosen.settings().items():
        if sources.get(setting, DEFAULT) == DEFAULT:
            values[setting], sources[setting] = value, f"profile {name}"
