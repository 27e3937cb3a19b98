"""YAML documents whose values know their places; JSON files are YAML, too.

Start reading at `read_documents`. A value that is not there is a `Value`, so that a path of keys
needs no checks: `pod["spec"]["shareProcessNamespace"].text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import yaml

from config.declaration import ConfigError
from config.yaml_file import MAX_LEVELS, YAML_ERRORS, LimitedLoader, explain
from workbench.check.findings import Place
from workbench.check.scalars import parts_of
from workbench.check.sources import Word
from workbench.check.text import InnerText, Part, Text

TRUE = frozenset(("true", "yes", "on"))
MAX_DOCUMENTS = 1_000


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a document, or the lack of one."""

    node: yaml.Node | None
    source: Text
    """The text of the document."""

    def __bool__(self) -> bool:
        """Returns whether there is a value other than null."""
        return self.node is not None and self.node.tag != "tag:yaml.org,2002:null"

    def __getitem__(self, key: str) -> Value:
        """Returns the value of a key of a mapping."""
        for name, value in self.items():
            if name.text == key:
                return value
        return Value(None, self.source)

    def __iter__(self) -> Iterator[Value]:
        """Yields the elements of a list."""
        if isinstance(self.node, yaml.SequenceNode):
            for node in self.node.value:
                yield Value(node, self.source)

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Yields the keys and values of a mapping; merged mappings (`<<`) come last."""
        pending = [self]
        seen: set[int] = set()
        for mapping in pending:
            if not isinstance(mapping.node, yaml.MappingNode) or id(mapping.node) in seen:
                continue
            seen.add(id(mapping.node))
            for key, value in mapping.node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    merged = Value(value, self.source)
                    pending += list(merged) or [merged]
                else:
                    yield Value(key, self.source), Value(value, self.source)

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.source.file

    @property
    def is_mapping(self) -> bool:
        """Returns whether the value has keys."""
        return isinstance(self.node, yaml.MappingNode)

    @property
    def is_list(self) -> bool:
        """Returns whether the value has elements."""
        return isinstance(self.node, yaml.SequenceNode)

    @property
    def is_text(self) -> bool:
        """Returns whether the value is a string, and not a number, a switch, or a list."""
        return self.node is not None and self.node.tag == "tag:yaml.org,2002:str"

    @property
    def text(self) -> str:
        """The value as it is written; empty for a list, a mapping, or null."""
        return str(self.node.value) if self and isinstance(self.node, yaml.ScalarNode) else ""

    @property
    def is_true(self) -> bool:
        """Returns whether the value is a switch that is on."""
        return self.text.lower() in TRUE

    @property
    def number(self) -> int | None:
        """The value as a whole number; None for another one."""
        text = self.text
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None

    def plain(self) -> object:
        """Returns the value as an object of Python; its text if it cannot be one."""
        if self.node is None:
            return None
        with suppress(*YAML_ERRORS):
            plain: object = yaml.constructor.SafeConstructor().construct_document(self.node)
            return plain
        return self.text

    @property
    def place(self) -> Place:
        """The first character of the value."""
        return self.source.place(0 if self.node is None else self.node.start_mark.index)

    @property
    def content(self) -> Text:
        """The text with the places of its characters."""
        parts = [Part(0, 0)]
        if isinstance(self.node, yaml.ScalarNode):
            parts = parts_of(self.node, self.source.text)
        return InnerText(self.source, self.text, parts)

    def word(self, text: str | None = None) -> Word:
        """Returns the value as a word of a command line, which keeps its blanks.

        `text` is another word that stands for the value.
        """
        if text is not None:
            return Word(text, self.place, is_quoted=True)
        return Word(self.text, self.place, is_quoted=True, content=self.content)

    def children(self) -> list[Value]:
        """Returns the elements of a list, or the values of a mapping as it is written."""
        nodes: list[yaml.Node] = []
        if isinstance(self.node, yaml.SequenceNode):
            nodes = self.node.value
        elif isinstance(self.node, yaml.MappingNode):
            nodes = [value for _, value in self.node.value]
        return [Value(node, self.source) for node in nodes]

    def walk(self) -> Iterator[Value]:
        """Yields this value and all below it, each once, however many aliases name it."""
        seen: set[int] = set()
        pending = [self]
        while pending:
            value = pending.pop()
            if value.node is not None and id(value.node) not in seen:
                seen.add(id(value.node))
                yield value
                pending += reversed(value.children())


def read_documents(source: Text) -> Iterator[Value]:
    """Yields the documents of a YAML text; empty ones are left out.

    Raises:
        ConfigError: The text is not YAML, or is nested too deeply; the message is one line.
    """
    text = source.text
    count = 0
    try:
        loader = LimitedLoader(text)
        while loader.check_node():
            value = Value(loader.get_node(), source)
            count += 1
            if count > MAX_DOCUMENTS:
                raise ValueError(f"there are more than {MAX_DOCUMENTS} documents")
            if value:
                _check_depth(value)
                yield value
    except yaml.MarkedYAMLError as error:
        advice = "; it is a template: check the output of helm template" if "{{" in text else ""
        reason = f"{explain(error, text, source.place(0).line)}{advice}"
        raise ConfigError(f"{source.file} cannot be parsed: {reason}") from None
    except YAML_ERRORS as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source.file} cannot be parsed: {reason}") from None


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
        nested = [child for child in value.children() if child.is_mapping or child.is_list]
        pending += [(child, depth + 1) for child in nested]
