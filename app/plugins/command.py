"""`python -m app plugins`: which plugins a server with these settings has, their hooks and their settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from app.plugins.offline import registry_of
from config import ConfigError, Settings
from config.loader import load
from config.settings import Plugin


def run(argv: Sequence[str]) -> int:
    """Exit status. `argv` are a server's flags."""
    try:
        settings = load(argv, os.environ, warn=lambda text: None)
        implemented = registry_of(settings).implemented()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    for plugin in settings.PLUGINS:
        print("\n".join(_told(plugin, implemented[plugin.name], settings)))
    if not settings.PLUGINS:
        print("no plugins")
    return 0


def _told(plugin: Plugin, implemented: Sequence[str], settings: Settings) -> Iterator[str]:
    about = (getattr(plugin.hooks, "__doc__", None) or "").strip().partition("\n")[0]
    yield f"{plugin.name} {plugin.version}".rstrip() + f" ({plugin.origin}): {about}"
    yield f"  hooks: {', '.join(implemented) or 'none'}"
    for row in settings.table.rows:
        if row.group == plugin.group:
            rules = f" The value {row.limits}." if row.limits else ""
            value = row.write(row.value(settings)) if not row.secret else "***"
            yield f"  --{row.name} ({row.kind.name}, {row.env[0]}; now {value!r}): {row.help}{rules}"
