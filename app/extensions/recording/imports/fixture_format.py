"""A format of fixtures."""

from collections.abc import Callable
from typing import NamedTuple

from app.extensions.recording.imports.imported_script import ImportedScript, Json


class Format(NamedTuple):
    """A format that can be imported."""

    is_format: Callable[[object], bool]
    read: Callable[[object, ImportedScript], Json | None]
    """Adds the rules; may return the schemas of tools."""
