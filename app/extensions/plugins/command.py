"""`understudy plugins`: lists the built-in extensions and the plugins of a server."""

from __future__ import annotations

import os
from collections.abc import Sequence

from app.core.built_in import present_extensions
from app.core.settings import load
from app.extensions.plugins.registry import registry_of
from config.declaration import COMMAND
from config.flags import as_command
from config.settings import Settings
from config.sources import ignore_warning

USAGE = f"""\
usage: {COMMAND} plugins [--plugin NAME] [--setting value ...]

List the built-in extensions of a server with these settings, and its plugins with
their hooks and settings (docs/plugins.md)."""


@as_command()
def run(argv: Sequence[str]) -> int:
    """Prints the extensions of a server started with the flags `argv`; returns the exit status."""
    if "--help" in argv or "-h" in argv:
        print(USAGE)
        return 0
    settings = load(argv, os.environ, ignore_warning)
    print("built-in extensions:")
    for extension in present_extensions():
        state = "off"
        if extension.is_enabled(settings):
            state = "on"
        summary = (extension.__doc__ or "").partition("\n")[0]
        print(f"  {extension.name:<18}{state:<5}{summary}")
    if settings.PLUGINS:
        print("plugins:")
        _print_plugins(settings)
    else:
        print("no plugins")
    return 0


def _print_plugins(settings: Settings) -> None:
    guards = registry_of(settings).guards
    for plugin in settings.PLUGINS:
        summary = (plugin.extension.__doc__ or "").strip().partition("\n")[0]
        title = f"{plugin.name} {plugin.version}".rstrip()
        print(f"  {title} ({plugin.origin}): {summary}")
        hooks = ", ".join(guards[plugin.name])
        print(f"    hooks: {hooks or 'none'}")
        for row in settings.table.rows:
            if row.group != plugin.group:
                continue
            value = "***"
            if not row.about.secret:
                value = row.write(row.value(settings))
            limits = ""
            if row.limits:
                limits = f" The value {row.limits}."
            facts = f"{row.kind.name}, {row.env[0]}; now {value!r}"
            print(f"    --{row.name} ({facts}): {row.help}{limits}")
