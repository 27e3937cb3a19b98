"""Command lines in the texts of YAML files that are no container's command or arguments.

Scripts stand in ConfigMaps and Secrets, in values of charts, and in jobs of many systems. Start
reading at `read_texts`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import yaml

from workbench.check.content import FileContent, InnerFile
from workbench.check.documents import Value
from workbench.check.findings import Finding, Place
from workbench.check.rules import finding
from workbench.check.shell_commands import SCRIPT_SUFFIXES, ShellReader
from workbench.check.sources import CommandLine, is_code, names_command, names_server
from workbench.check.text import Text

MAX_TEXTS = 300
"""Most texts of a file that are read as scripts."""
SCRIPT_KINDS = frozenset(("ConfigMap", "Secret"))
SCRIPT_START = "#!"
OTHER_SUFFIXES = (".py", ".md", ".txt", ".rst", ".ipynb")
"""Ends of keys with files that `check` does not read."""
PROSE_KEYS = frozenset(("description", "summary", "message", "title", "notes", "comment", "doc"))
"""Keys whose texts are for people."""


class FoundText(NamedTuple):
    """A text of a document that may hold a command line, and its key."""

    key: str
    value: Value


def texts_of(document: Value) -> Iterator[FoundText]:
    """Yields the texts of a document that name vLLM's server, or an image with vLLM."""
    pending = [FoundText("", document)]
    seen: set[int] = set()
    while pending:
        key, value = pending.pop()
        if value.node is None or id(value.node) in seen:
            continue
        seen.add(id(value.node))
        if value.is_text:
            if names_command(value.text) or ("\n" in value.text and names_server(value.text)):
                yield FoundText(key, value)
            continue
        children: list[FoundText] = []
        if isinstance(value.node, yaml.MappingNode):
            for name, node in value.node.value:
                text = Value(name, value.source).text
                children.append(FoundText(text, Value(node, value.source)))
        else:
            children = [FoundText(key, child) for child in value.children()]
        pending += reversed(children)


def scripts_of(objects: Iterable[Value]) -> Mapping[tuple[str, str], Text]:
    """Returns the scripts in ConfigMaps, by the names of the objects and their keys."""
    scripts: dict[tuple[str, str], Text] = {}
    for document in objects:
        if document["kind"].text in SCRIPT_KINDS:
            name = document["metadata"]["name"].text
            for part in ("data", "stringData"):
                for key, value in document[part].items():
                    if names_server(value.text):
                        scripts[name, key.text] = value.content
    return scripts


def unread(place: Place) -> Finding:
    """Returns the note about a text that names vLLM's server."""
    message = "this text names vLLM's server, and no command line was found in it"
    return finding("F503", place, message)


class TextReader:
    """Reads the texts of documents that no container has as its command or arguments."""

    def __init__(self, lines: Sequence[CommandLine], version: str, depth: int) -> None:
        """`lines` have been read already; `version` is the version of the images of the file.

        `depth` is the number of texts around the documents.
        """
        self.content = FileContent()
        places = {line.place for line in lines}
        for line in lines:
            places.update(word.place for word in line.words)
        self._read_places = sorted(places)
        self._version = version
        self._depth = depth
        self._count = 0

    def read(self, document: Value) -> None:
        """Adds the command lines in the texts of a document."""
        for key, value in texts_of(document):
            if self._is_read(value):
                continue
            self._count += 1
            if self._count > MAX_TEXTS:
                message = f"only {MAX_TEXTS} texts of a file are read, and this is the next one"
                self.content.notes.append(finding("F503", value.place, message))
                return
            content = self._content_of(key, value)
            self.content.add(content)
            is_found = content.lines or content.inner or key.endswith(OTHER_SUFFIXES)
            if not is_found and names_command(value.text):
                self.content.notes.append(unread(value.place))

    def _is_read(self, value: Value) -> bool:
        """Returns whether a command line was found in a text already."""
        assert value.node is not None
        start = value.place
        end = value.source.place(value.node.end_mark.index)
        index = bisect_left(self._read_places, start)
        return index < len(self._read_places) and self._read_places[index] < end

    def _content_of(self, key: str, value: Value) -> FileContent:
        if not is_code(key, value.text):
            inner = InnerFile(
                text=value.content,
                name=key,
                depth=self._depth + 1,
                version=self._version,
                is_in_container=True,
            )
            return FileContent(inner=[inner])
        is_script = key.endswith(SCRIPT_SUFFIXES) or value.text.startswith(SCRIPT_START)
        reader = ShellReader(depth=1, is_prose=not is_script)
        content = FileContent()
        if key.lower() not in PROSE_KEYS:
            content.lines += reader.read(value.content)
            content.inner += reader.inner
        for line in content.lines:
            line.is_in_container = True
            line.version = line.version or self._version
        return content
