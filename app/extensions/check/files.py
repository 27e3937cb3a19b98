"""Reads files with command lines of vLLM: shell scripts, Dockerfiles, YAML files, systemd units.

PyYAML gives the line and column of each value; Dockerfiles and units need only their instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from app.extensions.check.documents import Value, read_documents
from app.extensions.check.findings import Finding, Place
from app.extensions.check.reading import is_document, is_json, parse_documents
from app.extensions.check.rules import finding
from app.extensions.check.shell_commands import IMAGE, ShellReader, behind_entry_point
from app.extensions.check.sources import MAX_BYTES, MAX_WORDS, CommandLine, Word
from app.extensions.check.text import Text
from config.declaration import ConfigError, UsageError
from config.untrusted import UntrustedDataError, decode_untrusted
from config.vllm.facts import OPTIONS
from config.vllm.words import option_words
from config.yaml_file import parse_yaml_text

_INSTRUCTION = re.compile(
    r"^[ \t]*(FROM|ENV|ARG|ENTRYPOINT|CMD|RUN)[ \t]+((?:[^\n]*\\\r?\n)*[^\n]*)",
    re.IGNORECASE | re.MULTILINE,
)
_UNIT_LINE = re.compile(
    r"^(ExecStart|Environment)[ \t]*=[ \t]*[-@:+!]*((?:[^\n]*\\\r?\n)*[^\n]*)", re.MULTILINE
)
_PAIR = re.compile(r"""(?<!\w)(?:(\w+)=("[^"]*"|'[^']*'|\S*)|(\w+)[ \t]+(.*))""")


class FileContent(NamedTuple):
    """The parts of a file that rules check."""

    lines: list[CommandLine]
    watchers: list[Value]
    """All documents of the file, if any document asks for metrics."""


def read_file(source: Text, *, is_named: bool = True) -> FileContent:
    """Returns the command lines in a file, and its documents that watch vLLM.

    The name decides how a file is read, or the beginning of a text without a name.

    Raises:
        UsageError: The file is too large.
        ConfigError: The file does not have the format of its name.
    """
    if is_document(source.file, "" if is_named else source.text):
        return _read_documents(source)
    if len(source.text) > MAX_BYTES:
        raise UsageError(f"{source.file} is larger than {MAX_BYTES >> 10} KiB")
    path = PurePath(source.file if is_named else "")
    name = path.name.lower()
    if name.startswith(("dockerfile", "containerfile")) or path.suffix == ".dockerfile":
        lines = read_dockerfile(source)
    elif path.suffix == ".service":
        lines = read_unit(source)
    else:
        lines = ShellReader().read(source)
    return FileContent(list(lines), [])


def _read_documents(source: Text) -> FileContent:
    """Reads the files of a cluster, those that watch it, and a configuration of vLLM."""
    from app.extensions.check.clusters.deployments import cluster_lines
    from app.extensions.check.watch.queries import is_watcher

    has_json = is_json(source.file, source.text)
    documents = parse_documents(source, is_json=has_json)
    watchers = documents if any(map(is_watcher, documents)) else []
    if not has_json and len(documents) == 1 and _is_configuration(documents[0]):
        return FileContent([read_configuration(documents[0])], watchers)
    return FileContent(cluster_lines(documents), watchers)


def read_dockerfile(content: Text) -> Iterator[CommandLine]:
    """Yields the command line of each stage that starts vLLM."""
    stages: list[list[re.Match[str]]] = []
    for match in _INSTRUCTION.finditer(content.text):
        if match[1].upper() == "FROM" or not stages:
            stages.append([])
        stages[-1].append(match)
    for stage in stages:
        yield from _read_stage(content, stage)


def _read_stage(content: Text, stage: Sequence[re.Match[str]]) -> Iterator[CommandLine]:
    reader = ShellReader()
    image = None
    entry: list[Word] | None = None
    command: list[Word] = []
    for match in stage:
        name = match[1].upper()
        if name == "FROM":
            words = [word for word in match[2].split() if not word.startswith("--")]
            image = IMAGE.fullmatch(words[0]) if words else None
        elif name in ("ENV", "ARG"):
            _read_variables(content, match, reader)
        elif name == "ENTRYPOINT":
            entry = _words_of(content, match)
            command = []
        elif name == "CMD":
            command = _words_of(content, match)
    if entry is None and not command:
        return
    if entry is None and image is not None:
        line = CommandLine(command[0].place)
        found = behind_entry_point(line, command, has_entry_point=True)
    else:
        found = reader.read_command([*(entry or []), *command])
    if found is not None:
        found.version = (image["tag"] or "latest") if image is not None else ""
        found.is_in_container = bool(found.version)
        found.environment = {**reader.environment, **found.environment}
        yield found


def _read_variables(content: Text, match: re.Match[str], reader: ShellReader) -> None:
    """Notes the variables of ENV and ARG; those of ARG exist while the image is built only."""
    for pair in _PAIR.finditer(match[2]):
        variable = pair[1] or pair[3]
        value = pair[2] if pair[1] else pair[4]
        reader.variables[variable] = value.strip("\"'")
        if match[1].upper() == "ENV":
            reader.environment[variable] = content.place(match.start(2) + pair.start())


def _words_of(content: Text, match: re.Match[str]) -> list[Word]:
    """Returns the words of an instruction; those of its form without JSON begin with a shell."""
    from app.extensions.check.shell_words import split_commands

    text = match[2].strip()
    if not text.startswith("["):
        commands = list(split_commands(content, match.start(2), match.end(2)))
        words = commands[-1] if commands else []
        if any(word.text == "serve" for word in words):
            return words
        return [Word("sh", content.place(match.start(2))), *words]
    try:
        texts = decode_untrusted(text.replace("\\\n", " "), type=list[str])
    except UntrustedDataError:
        return []
    words = []
    offset = match.start(2)
    for word in texts[: MAX_WORDS + 1]:  # `Checker` rejects them
        quoted = content.text.find(f'"{word}"', offset)
        offset = max(offset, quoted)
        words.append(Word(word, content.place(offset), is_quoted=True))
        if quoted >= 0:
            offset += len(word) + 2
    return words


def read_unit(content: Text) -> Iterator[CommandLine]:
    """Yields the command lines of a systemd unit."""
    reader = ShellReader()
    for match in _UNIT_LINE.finditer(content.text):
        if match[1] == "Environment":
            for pair in _PAIR.finditer(match[2].strip("\"'")):
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
