"""YAML documents whose values know their places; JSON files are YAML, too.

Start reading at `read_documents`. A value that is not there is a `Value`, so that a path of keys
needs no checks: `pod["spec"]["shareProcessNamespace"].text`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import yaml

from app.extensions.check.findings import Place
from app.extensions.check.shell_words import Text
from app.extensions.check.sources import Word
from config.declaration import ConfigError
from config.yaml_file import MAX_LEVELS, YAML_ERRORS, LimitedLoader, explain

TRUE = frozenset(("true", "yes", "on"))
MAX_DOCUMENTS = 1_000


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
        """Yields the keys and values of a mapping; merged mappings (`<<`) come last."""
        pending = [self]
        seen: set[int] = set()
        for mapping in pending:
            if not isinstance(mapping.node, yaml.MappingNode) or id(mapping.node) in seen:
                continue
            seen.add(id(mapping.node))
            for key, value in mapping.node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    merged = Value(value, self.file)
                    pending += list(merged) or [merged]
                else:
                    yield Value(key, self.file), Value(value, self.file)

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
        if self.node is None:
            return Place(self.file)
        mark = self.node.start_mark
        return Place(self.file, mark.line + 1, mark.column + 1)

    @property
    def content(self) -> Text:
        """The text with the places of its characters, also in a block (`|` or `>`)."""
        node = self.node
        place = self.place
        if not isinstance(node, yaml.ScalarNode):
            return Text(self.file, "", place)
        text = str(node.value)
        written = _written(node)
        if node.style == "|":
            blanks = _blanks(written)
            start = Place(self.file, place.line + 1, blanks + 1)
            return Text(self.file, text, start, [blanks] * text.count("\n"))
        if node.style in ("'", '"'):
            place = place._replace(column=place.column + 1)
            written = written[1:-1]
        if node.style == ">":
            place = Place(self.file, place.line + 1, _blanks(written) + 1)
            written = written.partition("\n")[2]
        return _folded(self.file, text, written, place)

    def documents(self) -> Iterator[Value]:
        """Yields the documents in the text of a block, with their places in this file.

        Raises:
            ConfigError: as `read_documents`.
        """
        content = self.content
        start = content.place(0)
        blanks = " " * (start.column - 1)
        lines = [blanks + line for line in content.text.splitlines(keepends=True)]
        yield from read_documents(self.file, "\n" * (start.line - 1) + "".join(lines))

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


def _written(node: yaml.Node) -> str:
    """Returns a value as it is in the file."""
    start, end = node.start_mark, node.end_mark
    if start.buffer is None or end is None:
        return ""
    return start.buffer[start.pointer : end.pointer]


def _blanks(written: str) -> int:
    """Returns the blanks in front of the lines of a block, whose first line is its mark."""
    for line in written.splitlines()[1:]:
        if line.strip():
            return len(line) - len(line.lstrip(" "))
    return 0


def _folded(file: str, text: str, written: str, place: Place) -> Text:
    """Returns a text whose lines YAML has joined by blanks.

    The places are right if the text is the lines as they are written: without escapes, and without
    empty lines.
    """
    lines = written.splitlines()
    parts = [line.strip() for line in lines]
    if len(lines) < 2 or " ".join(parts).strip() != text.strip():
        return Text(file, text, place)
    blanks = [len(line) - len(line.lstrip()) for line in lines]
    return Text(file, text, place, blanks[1:], layout="\n".join(parts))


def read_documents(file: str, text: str) -> Iterator[Value]:
    """Yields the documents of a YAML or JSON file; empty ones are left out.

    Raises:
        ConfigError: The text is not YAML, or is nested too deeply; the message is one line.
    """
    count = 0
    try:
        loader = LimitedLoader(text)
        while loader.check_node():
            value = Value(loader.get_node(), file)
            count += 1
            if count > MAX_DOCUMENTS:
                raise ValueError(f"there are more than {MAX_DOCUMENTS} documents")
            if value:
                _check_depth(value)
                yield value
    except yaml.MarkedYAMLError as error:
        advice = "; it is a template: check the output of helm template" if "{{" in text else ""
        reason = f"{explain(error, text)}{advice}"
        raise ConfigError(f"{file} cannot be parsed: {reason}") from None
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
