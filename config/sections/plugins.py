"""Settings of plugins."""

from typing import Annotated

from msgspec import Struct

from config.declaration import About, NonEmptyItems, Section


class Plugin(Struct, frozen=True):
    """An imported plugin: a module, or any object with hooks as attributes."""

    name: str
    version: str
    """Version of the plugin; may be empty."""
    origin: str
    """Item of the setting `plugin`, or the package with the entry point."""
    hooks: object
    settings: type[Section] | None

    @property
    def group(self) -> str:
        """Attribute of `Settings` with the plugin's section."""
        return self.name.replace("-", "_")


class PluginSettings(Section, frozen=True, kw_only=True):
    """Plugins."""

    plugin: Annotated[NonEmptyItems, About(path=True)] = ()
    """Plugins, each a module or a path to a file FILE.py. The flag may be repeated."""
    installed_plugins: bool = True
    """Take the plugins of installed packages, too: entry points of the group understudy."""
