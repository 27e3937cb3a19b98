"""Reads files of documents, and selects dashboards, rules and autoscalers."""

from __future__ import annotations

import re
from pathlib import PurePath

from app.extensions.check.documents import Value, read_documents
from app.extensions.check.shell_words import Text
from app.extensions.check.watch.json_nodes import read_json
from app.extensions.check.watch.queries import is_watcher
from config.vllm.words import SUFFIXES

JSON_SUFFIX = ".json"
_JSON = re.compile(r"\s*\{\s*[\"}]")
_YAML = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:---|- \w+:|[\w.-]+:)(?=\s|$)")


def is_document(name: str, text: str = "") -> bool:
    """Returns whether a file is JSON or YAML, by its name or by the beginning of its text."""
    if PurePath(name).suffix in (JSON_SUFFIX, *SUFFIXES):
        return True
    return _JSON.match(text) is not None or _YAML.match(text) is not None


def read_watchers(name: str, text: str) -> list[Value]:
    """Returns the documents of a file, if at least one asks for metrics; otherwise none.

    Raises:
        ConfigError: The text is neither JSON nor YAML.
    """
    if PurePath(name).suffix == JSON_SUFFIX or _JSON.match(text) is not None:
        documents = [read_json(Text(name, text), name)]
    else:
        documents = list(read_documents(name, text))
    return documents if any(map(is_watcher, documents)) else []
