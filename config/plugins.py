"""Finds plugins, and adds their sections to the settings. `app.plugins` handles their hooks."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from config.settings import PluginSettings, Settings, rows, table_of
from config.sources import Sources
from config.validation import read

SECTION = b"[understudy]"
"""Section of an installed package's entry points that has plugins."""


def settings_kind(sources: Sources, base: type[Settings]) -> type[Settings]:
    """Returns the settings `base` with the sections of all plugins.

    Raises:
        ConfigError: A plugin cannot be imported or used.
    """
    values: dict[str, Any] = {}
    for row in rows("plugins", PluginSettings):
        source = sources.value_of(row)
        if source is not None:
            raw, source_name = source
            values[row.attribute] = read(row, raw, source_name)
    return kind_with(PluginSettings(**values), base)


def kind_with(named: PluginSettings, base: type[Settings]) -> type[Settings]:
    """Returns `base` with the sections of these plugins; `base` itself without plugins."""
    installed = named.installed_plugins and any(map(_has_plugins, sys.path))
    if not installed and not named.plugin:
        return base
    from config.plugin_modules import settings_with  # few servers have plugins

    return settings_with(base, named, installed=installed)


def to_plain(settings: Settings) -> dict[str, Any]:
    """Converts settings other than defaults to JSON types, for `from_plain` in another process."""
    return {"settings": msgspec.to_builtins(settings), "plugins": len(settings.PLUGINS)}


def from_plain(values: Mapping[str, Any], base: type[Settings]) -> Settings:
    """Restores the settings of `to_plain`, a `base`. Raises ConfigError as `kind_with`."""
    plain = values["settings"]
    kind = base
    if values["plugins"]:  # finding plugins is slow
        kind = kind_with(msgspec.convert(plain.get("plugins", {}), PluginSettings), base)
    # Converting all sections would prepare the types of all, although few differ from the defaults.
    sections = table_of(kind).sections
    changed: Any = {group: msgspec.convert(plain[group], sections[group]) for group in plain}
    return kind(**changed)


def _has_plugins(folder: str) -> bool:
    """Returns True if a package in this folder has entry points for plugins."""
    with suppress(OSError):
        return _lists_plugins(folder, os.stat(folder or ".").st_mtime_ns)
    return False


@lru_cache(maxsize=64)
def _lists_plugins(folder: str, modified_ns: int) -> bool:
    """Reads all entry points of a folder once until pip modifies it, also for further servers."""
    for file in Path(folder).glob("*-info/entry_points.txt"):
        with suppress(OSError):
            if SECTION in file.read_bytes():
                return True
    return False
