"""Reads YAML by the parser in C: a tenth of the time, for files that are read while collecting."""

from typing import Any

import yaml


def documents(text: str) -> list[Any]:
    """Returns all documents of a text."""
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


def document(text: str) -> Any:
    """Returns the only document of a text."""
    return yaml.load(text, Loader=yaml.CSafeLoader)
