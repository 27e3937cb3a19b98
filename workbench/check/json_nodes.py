"""JSON documents as the nodes of YAML, whose values know their places.

The scanner is that of Python's `json`: it reads a dashboard of 50 KB in milliseconds, where the
YAML parser takes 0.3 s, and it knows JSON's escapes of characters above U+FFFF.
"""

from __future__ import annotations

import json
import json.scanner
from collections.abc import Callable, Iterable
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from typing import Any

import yaml

from config.declaration import ConfigError
from config.yaml_file import MAX_LEVELS, MAX_NODES
from workbench.check.documents import Value
from workbench.check.text import Text

BYTE_ORDER_MARK = "\ufeff"
TAG = "tag:yaml.org,2002:"


class _Decoder(json.JSONDecoder):
    """A decoder that makes nodes. Only the scanner in Python calls these functions."""

    def __init__(self) -> None:
        super().__init__(strict=False)
        self._depth = 0
        self._nodes = 0
        self.object_pairs_hook = self._mapping
        self.parse_string = self._string
        self.parse_array = self._array
        self.parse_object = self._object
        self.parse_int = self._number
        self.parse_float = self._number
        self.parse_constant = self._number
        make_scanner: Callable[[json.JSONDecoder], Any] = json.scanner.py_make_scanner  # type: ignore[attr-defined]
        self.scan_once = make_scanner(self)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise ValueError(f"the file has more than {MAX_NODES} values")

    def _string(self, text: str, end: int, strict: bool) -> tuple[yaml.Node, int]:
        self._count(1)
        value, after = scanstring(text, end, strict)
        node = yaml.ScalarNode(f"{TAG}str", value, _mark(end - 1), _mark(after), style='"')
        return node, after

    def _array(self, state: tuple[str, int], scan_once: Any) -> tuple[yaml.Node, int]:
        self._enter()
        values, after = JSONArray(state, scan_once)
        self._depth -= 1
        mark = _mark(state[1] - 1)
        nodes = list(map(_node, values))
        _set_marks(nodes, mark)
        return yaml.SequenceNode(f"{TAG}seq", nodes, mark), after

    def _object(self, state: tuple[str, int], *arguments: Any) -> tuple[yaml.Node, int]:
        self._enter()
        node, after = JSONObject(state, *arguments)
        self._depth -= 1
        node.start_mark = _mark(state[1] - 1)
        for pair in node.value:
            _set_marks(pair, node.start_mark)
        return node, after

    def _enter(self) -> None:
        self._count(1)
        self._depth += 1
        if self._depth > MAX_LEVELS:
            raise ValueError(f"lists and mappings are nested more than {MAX_LEVELS} levels deep")

    def _mapping(self, pairs: list[tuple[str, Any]]) -> yaml.Node:
        self._count(len(pairs))
        nodes = []
        for key, value in pairs:
            nodes.append((yaml.ScalarNode(f"{TAG}str", key), _node(value)))
        return yaml.MappingNode(f"{TAG}map", nodes)

    def _number(self, text: str) -> yaml.Node:
        self._count(1)
        return yaml.ScalarNode(f"{TAG}float", text)


def _mark(offset: int) -> yaml.Mark:
    """Returns a mark with a place in the text only: `Value` knows lines and columns."""
    return yaml.Mark("", offset, 0, 0, None, offset)


def _node(value: Any) -> yaml.Node:
    """Returns the node of a value; the scanner makes true, false and null itself."""
    if isinstance(value, yaml.Node):
        return value
    if value is None:
        return yaml.ScalarNode(f"{TAG}null", "null")
    return yaml.ScalarNode(f"{TAG}bool", "true" if value else "false")


def _set_marks(nodes: Iterable[yaml.Node], mark: yaml.Mark) -> None:
    """Gives numbers, constants and keys, whose places are not known, the place around them."""
    for node in nodes:
        if node.start_mark is None:
            node.start_mark = mark


def read_json(source: Text) -> Value:
    """Returns the value of a JSON text.

    Raises:
        ConfigError: The text is not JSON, or is nested too deeply; the message is one line.
    """
    text = source.text
    if text.startswith(BYTE_ORDER_MARK):
        text = f" {text[1:]}"
    try:
        value = _Decoder().decode(text)
    except json.JSONDecodeError as error:
        line = source.place(error.pos).line
        raise ConfigError(f"{source.file} cannot be parsed: line {line}: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source.file} cannot be parsed: {error}") from None
    node = _node(value)
    _set_marks([node], _mark(0))
    return Value(node, source)
