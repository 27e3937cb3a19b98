"""Finds the plugins that are named, imports them, and gives the settings the sections that they have.

What their hooks are is no matter of the settings: `app.plugins` looks at that.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from config.declaration import ConfigError, Section
from config.kinds import SWITCH
from config.settings import BY_NAME, Plugin, PluginSettings, Settings, rows, table_of
from config.sources import CONFIG, IGNORED, IGNORED_SWITCHES, Flags, config_path, given
from config.validation import read

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

API = 1
"""The version of the hooks. A plugin says in `API` for which one it was written."""
GROUP = "understudy"
"""Of the entry points of installed plugins."""
SECTION = f"[{GROUP}]".encode()
MODULE_PREFIX = "understudy_plugin_"
"""Before the names of modules that are files."""
RESERVED = frozenset(("config", "help", "v", "version", CONFIG))
"""Flags and variables that are no settings."""
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def settings_kind(
    flags: Flags, environ: Mapping[str, str], document: Mapping[str, object], path: str | None
) -> type[Settings]:
    """The settings with those of all plugins that flags, environment and YAML file name, or are installed.

    ConfigError, in one line with its name, for one that cannot be used.
    """
    file = f"YAML file {path}"
    values: dict[str, Any] = {}
    for row in (BY_NAME["plugin"], BY_NAME["installed-plugins"]):
        if (told := given(row, flags, environ, document, file)) is not None:
            values[row.attribute] = read(row, *told)
    return kind_with(PluginSettings(**values))


def kind_named_by(flags: Flags, environ: Mapping[str, str]) -> type[Settings]:
    """Reads the YAML file, and returns its `settings_kind`."""
    path = config_path(flags, environ)
    document: dict[str, object] = {}
    if path:
        from config.yaml_file import read_yaml

        document = read_yaml(path, lambda text: None)
    return settings_kind(flags, environ, document, path)


def kind_with(named: PluginSettings) -> type[Settings]:
    """The settings with those of these plugins; plain `Settings` without any."""
    plugins = list(_imported(named))
    if not plugins:
        return Settings
    taken = set(Settings.__struct_fields__) | set(dir(Settings))
    sections: list[tuple[str, type, Any]] = []
    for plugin in plugins:
        if plugin.group in taken:
            raise ConfigError(f"plugin {plugin.name} ({plugin.origin}): this name is taken")
        taken.add(plugin.group)
        if plugin.settings is not None:
            sections.append((plugin.group, plugin.settings, _section_of(plugin)))
    made = msgspec.defstruct(
        "Settings",
        sections,
        bases=(Settings,),
        namespace={"PLUGINS": tuple(plugins)},
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=True,
    )
    kind = cast(type[Settings], made)
    _check_rows(kind, plugins)
    return kind


def to_plain(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, for JSON: what another process takes by `from_plain`."""
    return {"settings": msgspec.to_builtins(settings), "plugins": len(settings.PLUGINS)}


def from_plain(values: Mapping[str, Any]) -> Settings:
    """The settings that `to_plain` wrote. ConfigError as `kind_with`."""
    plain, kind = values["settings"], Settings
    if values["plugins"]:  # which have to be looked for only where there are some
        kind = kind_with(msgspec.convert(plain.get("plugins", {}), PluginSettings))
    return msgspec.convert(plain, kind)


def _section_of(plugin: Plugin) -> Section:
    """All defaults of a plugin's settings. ConfigError where they are declared wrongly."""
    assert plugin.settings is not None
    try:
        rows(plugin.group, plugin.settings)
        defaults = plugin.settings()
        return msgspec.convert(msgspec.structs.asdict(defaults), plugin.settings)
    except Exception as error:
        raise ConfigError(f"plugin {plugin.name} ({plugin.origin}): its Settings: {_told(error)}") from None


def _check_rows(kind: type[Settings], plugins: Sequence[Plugin]) -> None:
    """ConfigError where a plugin's setting has a name, or a variable, that another one has."""
    by_group = {plugin.group: plugin for plugin in plugins}
    seen = RESERVED | IGNORED | {f"no-{name}" for name in IGNORED_SWITCHES}
    for row in table_of(kind).rows:
        names = {*row.names, *row.env}
        if row.kind is SWITCH:
            names |= {f"no-{name}" for name in row.names}
        if row.group in by_group and (twice := sorted(names & seen)):
            plugin = by_group[row.group]
            raise ConfigError(f"plugin {plugin.name} ({plugin.origin}): setting {twice[-1]} is there already")
        seen |= names


def _imported(named: PluginSettings) -> Iterator[Plugin]:
    """All plugins, the installed ones first; a module that is named twice is one plugin."""
    origins: dict[str, str] = {}
    seen: set[int] = set()
    for plugin in (*_installed(named.installed_plugins), *map(_named, named.plugin)):
        if id(plugin.hooks) in seen:
            continue
        seen.add(id(plugin.hooks))
        if plugin.name in origins:
            raise ConfigError(
                f"plugin {plugin.name}: two have this name, {origins[plugin.name]} and {plugin.origin}"
            )
        origins[plugin.name] = plugin.origin
        yield plugin


def _installed(wanted: bool) -> Iterator[Plugin]:
    if not wanted or not any(map(_has_plugins, sys.path)):
        return
    from importlib.metadata import entry_points  # which takes a tenth of a start to import

    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        yield _of_package(entry)


def _has_plugins(folder: str) -> bool:
    """Returns whether a package installed in this folder has entry points of ours."""
    with suppress(OSError):
        for name in os.listdir(folder or "."):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                if SECTION in file.read():
                    return True
    return False


def _of_package(entry: "EntryPoint") -> Plugin:
    origin, version = f"entry point {entry.name}", ""
    if entry.dist is not None:
        origin, version = f"package {entry.dist.name}", entry.dist.version
    return _plugin(entry.load, entry.name, origin, version)


def _named(item: str) -> Plugin:
    if item.endswith(".py"):
        return _plugin(partial(_file, item), os.path.basename(item).removesuffix(".py"), item)
    return _plugin(partial(import_module, item), item.rpartition(".")[2], item)


def _file(path: str) -> ModuleType:
    """The module that a file makes, read anew at every start and reload."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = MODULE_PREFIX + re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))
    spec = spec_from_file_location(name, os.path.expanduser(path))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # where its classes and annotations are looked up
    spec.loader.exec_module(module)
    return module


def _plugin(load: Callable[[], Any], name: str, origin: str, version: str = "") -> Plugin:
    """Loads a module and reads its facts. ConfigError where they make no sense."""
    try:
        hooks = load()
    except (Exception, SystemExit) as error:
        raise _not_imported(name, origin, error) from None
    name = str(getattr(hooks, "NAME", name.replace("_", "-").lower()))
    if not _NAME.fullmatch(name):
        raise ConfigError(f"plugin {name!r} ({origin}): a name is made of a-z, digits and single dashes")
    api = getattr(hooks, "API", None)
    if api != API:
        says = "does not say its API" if api is None else f"is written for API {api!r}"
        raise ConfigError(f"plugin {name} ({origin}): {says}; this server has API {API} (API = {API})")
    settings = getattr(hooks, "Settings", None)
    if settings is not None and not (isinstance(settings, type) and issubclass(settings, Section)):
        raise ConfigError(f"plugin {name} ({origin}): its Settings must be a config.declaration.Section")
    return Plugin(name, str(getattr(hooks, "VERSION", version)), origin, hooks, settings)


def _not_imported(name: str, origin: str, error: BaseException) -> ConfigError:
    """Returns the error, with the line of the innermost file outside the import system."""
    import traceback

    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename
    ]
    place = f" (line {frames[-1].lineno} of {frames[-1].filename})" if len(frames) > 1 else ""
    return ConfigError(f"plugin {name} ({origin}): cannot be imported: {_told(error)}{place}")


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
