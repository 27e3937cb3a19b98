"""Which extensions the repository has, for tests of several extensions at once."""

import re
from pathlib import Path

from app.core.built_in import present_extensions

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"app[./]extensions[./](\w+)")
"""Module or path of an extension."""


def is_present(name: str) -> bool:
    """Returns whether an extension, and each one that it requires, was not deleted."""
    return any(extension.name == name for extension in present_extensions())


def is_in_tree(place: str) -> bool:
    """Returns False for a module or path of an extension that was deleted from this tree."""
    match = PLACE.match(place)
    return match is None or (ROOT / "app" / "extensions" / match[1]).exists()
