"""What others add to a server."""

from typing import Annotated

from msgspec import Struct

from config.declaration import About, NonEmptyItems, Section


class Plugin(Struct, frozen=True):
    """A plugin that has been imported: a module, or whatever else has hooks as attributes."""

    name: str
    version: str
    """Empty where it does not say one."""
    origin: str
    """How it was found: an item of the setting, or the package whose entry point it is."""
    hooks: object
    settings: type[Section] | None

    @property
    def group(self) -> str:
        """The attribute of `Settings` that has its own settings."""
        return self.name.replace("-", "_")


class PluginSettings(Section, frozen=True, kw_only=True):
    """Plugins."""

    plugin: Annotated[
        NonEmptyItems,
        About("Plugins, each a module or a path to a file FILE.py. The flag may be repeated.", path=True),
    ] = ()
    installed_plugins: Annotated[
        bool, About("Take the plugins of installed packages, too: entry points of the group understudy.")
    ] = True
