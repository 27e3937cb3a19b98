"""YAML files: each key once, and bounded however their aliases multiply."""

from collections.abc import Hashable
from pathlib import Path
from typing import NoReturn

import yaml

from config.declaration import ConfigError

MOST_VALUES = 500_000
"""Most values of a file, with aliases expanded."""
MOST_LEVELS = 100
"""Deepest nesting of lists and mappings."""


class _Loader(yaml.SafeLoader):
    """A safe loader that refuses repeated keys, and merges (`<<`) into more than MOST_VALUES keys."""

    merged = 0
    """Number of keys in all mappings so far, merged keys included."""

    def construct_mapping(
        self, node: yaml.MappingNode, deep: bool = False
    ) -> dict[Hashable, object]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                self._refuse(f"{key.value} is given twice", node)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > MOST_VALUES:
            self._refuse(f"mappings have more than {MOST_VALUES} keys", node)

    def _refuse(self, reason: str, node: yaml.MappingNode) -> NoReturn:
        raise yaml.constructor.ConstructorError(None, None, reason, node.start_mark)


def parse_yaml(path: str) -> object:
    """Returns the content of the file; {} for an empty file. ConfigError for an invalid file."""
    try:
        text = Path(path).read_text("utf-8")
        document: object = yaml.load(text, _Loader)
    except OSError as error:
        raise ConfigError(f"YAML file {path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"YAML file {path}: cannot be parsed: {error}") from None
    if flaw := oversize(document):
        raise ConfigError(f"YAML file {path}: {flaw}")
    return {} if document is None else document


def oversize(document: object) -> str:
    """Returns the broken limit of a document with its aliases expanded; empty without one."""
    pending, seen = [(document, 1)], 0
    while pending:
        item, depth = pending.pop()
        inside = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        if inside and depth > MOST_LEVELS:
            return f"lists and mappings are nested more than {MOST_LEVELS} levels deep"
        seen += len(inside)
        if seen > MOST_VALUES:
            return f"with its aliases written out, it has more than {MOST_VALUES} values"
        pending.extend((each, depth + 1) for each in inside)
    return ""
