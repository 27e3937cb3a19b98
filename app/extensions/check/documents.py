"""YAML documents whose values know their places; JSON files are YAML, too.

Start reading at `read_documents`. A value that is not there is a `Value`, so that a path of keys
needs no checks: `pod["spec"]["shareProcessNamespace"].text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from app.extensions.check.findings import Place
from app.extensions.check.shell_words import Text
from app.extensions.check.sources import Word
from config.declaration import ConfigError
from config.yaml_file import MAX_LEVELS, YAML_ERRORS, LimitedLoader, explain

MERGE = "<<"
TRUE = frozenset(("true", "yes", "on"))
MAX_MERGES = 20
"""Mappings that one mapping takes keys from, itself included."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document, or the lack of one."""

    node: yaml.Node | None
    file: str

    def __bool__(self) -> bool:
        """Returns whether there is a value other than null."""
        return self.node is not None and self.node.tag != "tag:yaml.org,2002:null"

    def __getitem__(self, key: str) -> Value:
        """Returns the value of a key of a mapping."""
        for name, value in self.items():
            if name.text == key:
                return value
        return Value(None, self.file)

    def __iter__(self) -> Iterator[Value]:
        """Yields the elements of a list."""
        if isinstance(self.node, yaml.SequenceNode):
            for node in self.node.value:
                yield Value(node, self.file)

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Yields the keys and values of a mapping, with those of merged mappings (`<<`) last."""
        seen: set[int] = set()
        pending = [self]
        while pending and len(seen) < MAX_MERGES:
            mapping = pending.pop()
            if not isinstance(mapping.node, yaml.MappingNode) or id(mapping.node) in seen:
                continue
            seen.add(id(mapping.node))
            merged: list[Value] = []
            for key, node in mapping.node.value:
                value = Value(node, self.file)
                if key.value == MERGE and key.tag == "tag:yaml.org,2002:merge":
                    merged += list(value) or [value]
                else:
                    yield Value(key, self.file), value
            pending += reversed(merged)

    @property
    def is_mapping(self) -> bool:
        """Whether the value has keys."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Whether the value has elements."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_text(self) -> bool:
        """Whether the value is a string, and not a number, a switch, or a list."""
        return self.node is not None and self.node.tag == "tag:yaml.org,2002:str"

    @property
    def text(self) -> str:
        """The value as it is written; empty for a list, a mapping, or null."""
        return str(self.node.value) if self and isinstance(self.node, yaml.ScalarNode) else ""

    @property
    def is_true(self) -> bool:
        """Whether the value is a switch that is on."""
        return self.text.lower() in TRUE

    @property
    def number(self) -> int | None:
        """The value as a whole number; None for another one."""
        text = self.text
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None

    @property
    def place(self) -> Place:
        """Where the value begins."""
        if self.node is None:
            return Place(self.file)
        mark = self.node.start_mark
        return Place(self.file, mark.line + 1, mark.column + 1)

    @property
    def content(self) -> Text:
        """The text with the places of its characters, also those of a block (`|`)."""
        place = self.place
        style = self.node.style if isinstance(self.node, yaml.ScalarNode) else None
        if style == "|" and self.node is not None:
            indent = _indent(self.node)
            start = Place(self.file, place.line + 1, indent + 1)
            return Text(self.file, self.text, start, indent)
        if style in ("'", '"'):
            place = place._replace(column=place.column + 1)
        return Text(self.file, self.text, place)

    def word(self, text: str | None = None) -> Word:
        """Returns the value as a word of a command line, which keeps its blanks."""
        return Word(self.text if text is None else text, self.place, is_quoted=True)

    def walk(self) -> Iterator[Value]:
        """Yields this value and all below it, each once, however many aliases name it."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            value = pending.pop()
            if value.node is None or id(value.node) in seen:
                continue
            seen.add(id(value.node))
            yield value
            children = list(value) or [child for _, child in value.items()]
            pending += reversed(children)


def _indent(node: yaml.Node) -> int:
    """Returns the blanks in front of the lines of a block."""
    text = node.start_mark.buffer
    if text is None:
        return 0
    begin = text.find("\n", node.start_mark.pointer) + 1
    line = text[begin : begin + 200]
    return len(line) - len(line.lstrip(" "))


def read_documents(file: str, text: str) -> Iterator[Value]:
    """Yields the documents of a YAML or JSON file; empty ones are left out.

    Raises:
        ConfigError: The text is not YAML, or is nested too deeply; the message is one line.
    """
    try:
        loader = LimitedLoader(text)
        while loader.check_node():
            value = Value(loader.get_node(), file)
            if value:
                _check_depth(value)
                yield value
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{file} cannot be parsed: {explain(error, text)}") from None
    except YAML_ERRORS as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file} cannot be parsed: {reason}") from None


def _check_depth(document: Value) -> None:
    """Rejects a document whose lists and mappings contain themselves, or are nested too deeply."""
    deepest: dict[int, int] = {}
    pending = [(document, 1)]
    while pending:
        value, depth = pending.pop()
        if depth > MAX_LEVELS:
            raise ValueError(f"lists and mappings are nested more than {MAX_LEVELS} levels deep")
        if deepest.get(id(value.node), 0) >= depth:
            continue
        deepest[id(value.node)] = depth
        children = list(value) or [child for _, child in value.items()]
        pending += [(child, depth + 1) for child in children if child.is_mapping or child.is_list]
