"""The built-in extensions: their folders, their order, and which ones the settings enable."""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tokenizers import Tokenizer

    from app.core.text.files import TokenizerFolder
    from config import Settings

PACKAGE = "app.extensions"
log = logging.getLogger(__name__)


@cache
def extension_names() -> tuple[str, ...]:
    """Returns the names of the packages of `app.extensions`. Each package is an extension."""
    folder = _folder()
    names = sorted(os.listdir(folder))
    return tuple(name for name in names if os.path.exists(f"{folder}/{name}/__init__.py"))


@cache
def present_extensions(file: str = "__init__.py") -> tuple[type[Extension], ...]:
    """Returns the built-in extensions whose packages contain `file`, in the order of their calls.

    An extension follows its requirements, and extensions with a lower `order`; otherwise, the
    names decide. If the folder of a requirement was deleted, the extension is left out, with a
    warning. Packages without `file` are not imported, unless a package with it requires them.
    """
    folder = _folder()
    names = [name for name in extension_names() if os.path.exists(f"{folder}/{name}/{file}")]
    chosen = {name: extension for name in names if (extension := _usable(name)) is not None}
    ordered: dict[str, type[Extension]] = {}
    for extension in sorted(chosen.values(), key=_order):
        _append(extension, chosen, ordered)
    return tuple(ordered.values())


def import_extension(name: str) -> type[Extension]:
    """Imports the package `name`, and returns the extension that it declares.

    Raises:
        ImportError: the package declares no extension, or several.
    """
    module = import_module(f"{PACKAGE}.{name}")
    declared = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Extension)
        and value.__module__ == module.__name__
    ]
    if len(declared) != 1:
        raise ImportError(f"{module.__name__} declares {len(declared)} extensions instead of one")
    return declared[0]


def _folder() -> str:
    folder: str = import_module(PACKAGE).__path__[0]
    return folder


def _order(extension: type[Extension]) -> tuple[int, str]:
    return extension.order, extension.name


def _append(
    extension: type[Extension],
    chosen: dict[str, type[Extension]],
    ordered: dict[str, type[Extension]],
) -> None:
    """Appends an extension behind those that it requires."""
    for name in extension.requires:
        if name in chosen:
            _append(chosen[name], chosen, ordered)
    ordered.setdefault(extension.name, extension)


@cache
def _usable(name: str) -> type[Extension] | None:
    """Returns an extension; None, with a warning, if something that it requires was deleted."""
    missing = None
    extension = None
    try:
        extension = import_extension(name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(f"{PACKAGE}."):
            raise
        missing = error.name.removeprefix(f"{PACKAGE}.")
    if extension is not None:
        missing = _missing(extension.requires)
    if missing is None:
        return extension
    log.warning("extension %s is disabled because it requires %s", name, missing)
    return None


def _missing(requirements: Iterable[str]) -> str | None:
    """Returns the first of these extensions that cannot be used; None without one."""
    for name in requirements:
        if name not in extension_names() or _usable(name) is None:
            return name
    return None


def read_tokenizer(path: Path) -> tuple[Tokenizer, TokenizerFolder] | None:
    """Returns the tokenizer in a file that an extension can read; None for other files.

    Raises:
        TokenizerLoadError: as `Extension.read_tokenizer` does.
    """
    for extension in present_extensions():
        content = extension.read_tokenizer(path)
        if content is not None:
            return content
    return None


def enabled_extensions(settings: Settings) -> list[type[Extension]]:
    """Returns the built-in extensions that are present and that `settings` enable."""
    return [extension for extension in present_extensions() if extension.is_enabled(settings)]
