"""Reads files of documents, by their names or by the beginning of their texts."""

from __future__ import annotations

import re
from pathlib import PurePath

from app.extensions.check.documents import Value, read_documents
from app.extensions.check.shell_words import Text
from app.extensions.check.watch.json_nodes import read_json
from config.vllm.words import SUFFIXES

JSON_SUFFIX = ".json"
_JSON = re.compile(r"\s*\{\s*[\"}]")
_YAML = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---|- \w+:|[\w.-]+:)(?=\s|$)")


def is_document(name: str, text: str = "") -> bool:
    """Returns whether a file is JSON or YAML, by its name or by the beginning of its text."""
    if PurePath(name).suffix in (JSON_SUFFIX, *SUFFIXES):
        return True
    return _JSON.match(text) is not None or _YAML.match(text) is not None


def parse_documents(name: str, text: str) -> list[Value]:
    """Returns the documents of a JSON or YAML file.

    Raises:
        ConfigError: The text is neither JSON nor YAML.
    """
    if is_json(name, text):
        return [read_json(Text(name, text), name)]
    return list(read_documents(name, text))


def is_json(name: str, text: str) -> bool:
    """Returns whether a document is JSON, by its name or by the beginning of its text."""
    return PurePath(name).suffix == JSON_SUFFIX or _JSON.match(text) is not None
