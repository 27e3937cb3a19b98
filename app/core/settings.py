"""The settings of a server: the sections of the core, then those of its extensions.

`settings.section(TracingSettings)` returns the section of an extension. `config` has the rest: the
sections of the core, sources, validation, and the sections of plugins.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from functools import cache

from app.core.built_in import present_extensions
from config import Settings, loader
from config.settings import Table, table_of, with_sections
from config.sources import Flags, Warn
from vllm_facts.setting_rules import VllmSettings

LOG = logging.getLogger("app.config")


@cache
def settings_type() -> type[Settings]:
    """Returns the settings with the sections of all built-in extensions that are present."""
    sections = {}
    for extension in present_extensions():
        if extension.Settings is not None:
            sections[extension.name] = extension.Settings
    return with_sections(VllmSettings, sections)


def settings_table() -> Table:
    """Returns the rows of all settings, those of plugins apart."""
    return table_of(settings_type())


def load(
    argv: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    warn: Warn = LOG.warning,
) -> Settings:
    """Loads the settings of this process; `argv` has no program name.

    Raises:
        ConfigError: A setting is wrong, or a file or plugin cannot be read.
    """
    return loader.load(argv, environ, warn, settings_type(), _profile_limits)


def resolve(flags: Flags, environ: Mapping[str, str], warn: Warn) -> Settings:
    """Returns the settings of a parsed command line, the environment and the YAML file.

    Raises:
        ConfigError: As `load`.
    """
    return loader.resolve(flags, environ, warn, settings_type(), _profile_limits)


def _profile_limits(settings: Settings, decided: Collection[str]) -> Mapping[str, object]:
    from app.core.profiles import chosen_profile  # only servers with shared steps have a profile

    return chosen_profile(settings, decided).settings()
