"""Reads files of documents."""

from __future__ import annotations

from workbench.check.documents import Value, read_documents
from workbench.check.json_nodes import read_json
from workbench.check.text import Text


def parse_documents(source: Text, *, is_json: bool) -> list[Value]:
    """Returns the documents of a JSON or YAML text.

    Raises:
        ConfigError: The text is not JSON, or not YAML.
    """
    return [read_json(source)] if is_json else list(read_documents(source))
