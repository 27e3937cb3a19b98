"""Reads files with command lines of vLLM: shell scripts, Dockerfiles, YAML files, systemd units.

PyYAML gives the line and column of each value; units need only their instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from config.declaration import ConfigError, UsageError
from config.yaml_file import parse_yaml_text
from vllm_facts.facts import OPTIONS
from vllm_facts.words import option_words
from workbench.check.clusters.scripts import unread
from workbench.check.content import FileContent, InnerFile
from workbench.check.dockerfile import PAIR, read_dockerfile
from workbench.check.documents import Value, read_documents
from workbench.check.findings import Finding, Place
from workbench.check.reading import parse_documents
from workbench.check.rules import finding
from workbench.check.shell_commands import ShellReader, filled
from workbench.check.sources import (
    MAX_BYTES,
    MAX_LINES,
    CommandLine,
    Word,
    is_dockerfile,
    is_document,
    is_json,
    is_unit,
    names_command,
)
from workbench.check.text import Text

_UNIT_LINE = re.compile(
    r"^(ExecStart|Environment)[ \t]*=[ \t]*[-@:+!]*((?:[^\n]*\\\r?\n)*[^\n]*)", re.MULTILINE
)
MAX_DEPTH = 3
"""Texts within texts of a file."""


def read_file(source: Text, *, is_named: bool = True) -> FileContent:
    """Returns the command lines in a file, and its documents that watch vLLM.

    The name decides how a file is read, or the beginning of a text without a name.

    Raises:
        UsageError: The file is too large.
        ConfigError: The file does not have the format of its name.
    """
    name = source.file if is_named else ""
    if is_document(name, "" if is_named else source.text):
        content = _read_documents(source, 0)
    elif len(source.text) > MAX_BYTES:
        raise UsageError(f"{source.file} is larger than {MAX_BYTES >> 10} KiB")
    else:
        content = _read_code(source, name)
    _add_inner(content)
    return content


def _add_inner(content: FileContent) -> None:
    """Adds what the files in texts of a file contain."""
    for inner in content.inner:  # grows while it is read
        if inner.depth > MAX_DEPTH:
            if names_command(inner.text.text):
                content.notes.append(unread(inner.text.place(0)))
            continue
        part = _read_inner(inner)
        for line in part.lines:
            line.words = filled(line.words, inner.variables)
            line.environment = {**inner.environment, **line.environment}
            line.version = line.version or inner.version
            line.is_in_container = line.is_in_container or inner.is_in_container
        is_empty = not (part.lines or part.watchers or part.notes or part.inner)
        if is_empty and names_command(inner.text.text):
            part.notes.append(unread(inner.text.place(0)))
        content.add(part)


def _read_inner(inner: InnerFile) -> FileContent:
    """Returns the content of a text; a text that does not fit its name is a note."""
    if not is_document(inner.name, inner.text.text):
        return _read_code(inner.text, inner.name)
    try:
        return _read_documents(inner.text, inner.depth)
    except ConfigError as error:
        reason = str(error).removeprefix(f"{inner.text.file} ")
        message = f"the text {inner.name or 'here'} {reason}"
        return FileContent(notes=[finding("F503", inner.text.place(0), message)])


def _read_code(source: Text, name: str) -> FileContent:
    """Returns the content of a Dockerfile, a systemd unit, or a script."""
    if is_dockerfile(name):
        return read_dockerfile(source)
    if is_unit(name):
        return FileContent(lines=list(read_unit(source)))
    reader = ShellReader()
    lines = list(islice(reader.read(source), MAX_LINES + 1))  # the command refuses so many
    return FileContent(lines=lines, inner=reader.inner)


def _read_documents(source: Text, depth: int) -> FileContent:
    """Reads the files of a cluster, those that watch it, and a configuration of vLLM."""
    from workbench.check.clusters.deployments import read_cluster
    from workbench.check.watch.queries import is_watcher

    has_json = is_json(source.file if not depth else "", source.text)
    documents = parse_documents(source, is_json=has_json)
    watchers = documents if any(map(is_watcher, documents)) else []
    if not has_json and len(documents) == 1 and not depth and _is_configuration(documents[0]):
        return FileContent([read_configuration(documents[0])], watchers)
    content = read_cluster(documents, depth)
    content.watchers[:0] = watchers
    return content


def read_unit(content: Text) -> Iterator[CommandLine]:
    """Yields the command lines of a systemd unit."""
    reader = ShellReader()
    for match in _UNIT_LINE.finditer(content.text):
        if match[1] == "Environment":
            for pair in PAIR.finditer(match[2].strip("\"'")):
                if pair[1]:
                    reader.variables[pair[1]] = pair[2].strip("\"'")
                    reader.environment[pair[1]] = content.place(match.start(2))
        else:
            yield from reader.read(content, match.start(2), match.end(2))


def _is_configuration(document: Value) -> bool:
    """Returns whether half of the keys are options of vLLM; values of charts have some, too."""
    keys = [key.text for key, _ in document.items()]
    return 2 * sum(map(_is_option, keys)) >= len(keys) > 0


def read_yaml(source: Text) -> CommandLine:
    """Returns the command line that a YAML file of `vllm serve --config` stands for.

    Raises:
        ConfigError: The file is invalid, or has no option of vLLM.
    """
    documents = list(read_documents(source))
    if len(documents) != 1:
        raise ConfigError(f"YAML file {source.file} is not a configuration of vllm serve")
    return read_configuration(documents[0])


def read_configuration(values: Value) -> CommandLine:
    """Returns the command line of a document; see `read_yaml`."""
    name = values.file
    repeated_keys: list[str] = []
    document = parse_yaml_text(
        name, values.source.text, repeated_keys=repeated_keys, has_all_numbers=True
    )
    if not isinstance(document, dict) or not any(_is_option(key) for key in document):
        raise ConfigError(f"YAML file {name} is not a configuration of vllm serve")
    places = {key.text: key.place for key, _ in values.items()}
    line = CommandLine(Place(name))
    for key in repeated_keys:
        message = f"{key} is written twice; the last value counts"
        line.findings.append(_ignored("O111", places.get(key, line.place), message))
    for key, value in document.items():
        place = places.get(str(key), line.place)
        if value is False and _is_option(key):
            form = str(key).replace("_", "-")
            message = f"vLLM ignores {key}: false in a YAML file"
            fix = f"write no-{form}: true" if OPTIONS[form].off else "remove the line"
            line.findings.append(finding("O108", place, message, fix=fix))
        elif str(key).replace("_", "-") == "model-tag":
            line.words.insert(0, Word(str(value), place))
        elif value is not None or _is_option(key):
            words = option_words(str(key), value, is_option=True)
            line.words += [Word(word, place, is_quoted=True) for word in words]
    return line


def _is_option(key: object) -> bool:
    return str(key).replace("_", "-") in OPTIONS


def _ignored(code: str, place: Place, message: str) -> Finding:
    return finding(code, place, message, fix="remove what is ignored")
