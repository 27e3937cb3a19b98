"""Reads files of documents, by their names or by the beginning of their texts."""

from __future__ import annotations

import re
from pathlib import PurePath

from app.extensions.check.documents import Value, read_documents
from app.extensions.check.json_nodes import read_json
from app.extensions.check.text import Text
from config.vllm.words import SUFFIXES

JSON_SUFFIX = ".json"
_JSON = re.compile(r"\s*\{\s*[\"}]")
_YAML = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---|- \w+:|[\w.-]+:)(?=\s|$)")


def is_document(name: str, text: str = "") -> bool:
    """Returns whether a file is JSON or YAML, by its name or by the beginning of its text."""
    if PurePath(name).suffix in (JSON_SUFFIX, *SUFFIXES):
        return True
    return _JSON.match(text) is not None or _YAML.match(text) is not None


def is_json(name: str, text: str) -> bool:
    """Returns whether a document is JSON, by its name or by the beginning of its text."""
    return PurePath(name).suffix == JSON_SUFFIX or _JSON.match(text) is not None


def parse_documents(source: Text, *, is_json: bool) -> list[Value]:
    """Returns the documents of a JSON or YAML text.

    Raises:
        ConfigError: The text is not JSON, or not YAML.
    """
    return [read_json(source)] if is_json else list(read_documents(source))
