"""Imports plugins, and checks what they declare."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any

import msgspec

from config.declaration import ConfigError, Section
from config.kinds import SWITCH
from config.settings import Plugin, PluginSettings, Settings, rows, table_of, with_sections
from config.sources import CONFIG, IGNORED, IGNORED_SWITCHES, REMOVED

API = 2
"""Version of the contract. A plugin declares its version in `API`."""
GROUP = "understudy"
"""Group of the entry points of installed plugins."""
MODULE_PREFIX = "understudy_plugin_"
RESERVED_NAMES = frozenset(("config", "help", "v", "version", CONFIG))
"""Flags and variables that are not settings."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def settings_with(
    base: type[Settings], named: PluginSettings, *, installed: bool
) -> type[Settings]:
    """Returns `base` with the sections of the named plugins, and of the installed ones if wanted.

    Raises:
        ConfigError: A plugin cannot be imported or used.
    """
    plugins = tuple(_imported(named, installed))
    if not plugins:
        return base
    used_groups = set(base.__struct_fields__) | set(dir(base))
    sections: dict[str, type[Section]] = {}
    for plugin in plugins:
        if plugin.group in used_groups:
            raise _plugin_error(plugin, "this name is already in use")
        used_groups.add(plugin.group)
        if plugin.settings is not None:
            try:
                rows(plugin.group, plugin.settings, f"{plugin.group}_")
                msgspec.convert(msgspec.structs.asdict(plugin.settings()), plugin.settings)
            except Exception as error:
                raise _plugin_error(
                    plugin, f"the Settings class is invalid: {_describe(error)}"
                ) from None
            sections[plugin.group] = plugin.settings
    kind = with_sections(base, sections, plugins)
    _check_setting_names(kind)
    return kind


def _check_setting_names(kind: type[Settings]) -> None:
    """Raises ConfigError if a plugin has a setting whose name exists."""
    by_group = {plugin.group: plugin for plugin in kind.PLUGINS}
    used_names = (
        RESERVED_NAMES | IGNORED | REMOVED.keys() | {f"no-{name}" for name in IGNORED_SWITCHES}
    )
    for row in table_of(kind).rows:
        names = {*row.names, *row.env, *(f"no-{name}" for name in row.names if row.kind is SWITCH)}
        duplicates = sorted(names & used_names)
        if row.group in by_group and duplicates:
            raise _plugin_error(by_group[row.group], f"the setting {duplicates[-1]} already exists")
        used_names |= names


def _imported(named: PluginSettings, installed: bool) -> Iterator[Plugin]:
    """Yields all plugins, installed ones first; a module named twice is one plugin."""
    plugins: list[Plugin] = []
    if installed:
        from importlib.metadata import entry_points  # its import takes a tenth of a start

        for entry in sorted(entry_points(group=GROUP), key=attrgetter("name")):
            origin = f"entry point {entry.name}"
            version = ""
            if entry.dist is not None:
                origin = f"package {entry.dist.name}"
                version = entry.dist.version
            plugins.append(_plugin(entry.load, entry.name, origin, version))
    for item in named.plugin:
        if item.endswith(".py"):
            name = os.path.basename(item).removesuffix(".py")
            plugins.append(_plugin(partial(_file, item), name, item))
        else:
            plugins.append(_plugin(partial(import_module, item), item.rpartition(".")[2], item))
    by_name: dict[str, Plugin] = {}
    for plugin in plugins:
        first = by_name.setdefault(plugin.name, plugin)
        if first is plugin:
            yield plugin
        elif first.extension is not plugin.extension:
            raise ConfigError(
                f"plugin {plugin.name}: two plugins use this name: "
                f"{first.origin} and {plugin.origin}"
            )


def _file(path: str) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    name = MODULE_PREFIX + re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))
    spec = spec_from_file_location(name, os.path.expanduser(path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # classes and annotations are resolved there
    spec.loader.exec_module(module)
    return module


def _plugin(load: Callable[[], Any], name: str, origin: str, version: str = "") -> Plugin:
    """Loads a plugin and reads its name, version and settings.

    Raises:
        ConfigError: The plugin cannot be imported, or one of these is invalid.
    """
    try:
        module = load()
    except (Exception, SystemExit) as error:
        import traceback

        calls = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in calls if "importlib" not in frame.filename]
        place = ""
        if len(frames) > 1:
            place = f" (line {frames[-1].lineno} of {frames[-1].filename})"
        raise ConfigError(
            f"plugin {name} ({origin}) cannot be imported: {_describe(error)}{place}"
        ) from None
    _check_api(module, f"plugin {name} ({origin})")
    extension = getattr(module, "EXTENSION", None)
    if extension is None:
        raise ConfigError(
            f"plugin {name} ({origin}) does not define EXTENSION, a subclass of app.plugins.Plugin"
        )
    name = str(getattr(extension, "name", ""))
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"plugin {name!r} ({origin}): a name can contain only a-z, digits, and single dashes"
        )
    settings = getattr(extension, "Settings", None)
    plugin = Plugin(
        name=name,
        version=str(getattr(module, "VERSION", version)),
        origin=origin,
        extension=extension,
        settings=settings,
    )
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, Section)):
        raise _plugin_error(
            plugin, "the Settings class must be a subclass of config.declaration.Section"
        )
    return plugin


def _check_api(module: object, place: str) -> None:
    """Raises ConfigError unless `module` is written for this version of the contract."""
    api = getattr(module, "API", None)
    if api == API:
        return
    reason = f"is written for API {api!r}"
    if api is None:
        reason = "does not name its API"
    raise ConfigError(f"{place} {reason}; this server supports API {API} (see docs/plugins.md)")


def _plugin_error(plugin: Plugin, reason: str) -> ConfigError:
    return ConfigError(f"plugin {plugin.name} ({plugin.origin}): {reason}")


def _describe(error: BaseException) -> str:
    text = type(error).__name__
    if str(error):
        text += f": {error}"
    return text
