"""Reads the command lines of vLLM in Dockerfiles. Start reading at `read_dockerfile`.

The parser of Docker drops comments and empty lines inside of an instruction, which a shell does
not. Only six instructions matter, so there is no library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from config.untrusted import UntrustedDataError, decode_untrusted
from vllm_facts.images import Image, read_image
from workbench.check.content import FileContent, InnerFile
from workbench.check.shell_commands import ShellReader, container_lines, filled
from workbench.check.sources import MAX_WORDS, CommandLine, Word, is_code, names_server
from workbench.check.text import InnerText, Part, Text

_INSTRUCTION = re.compile(r"[ \t]*(FROM|ENV|ARG|ENTRYPOINT|CMD|RUN|COPY|ADD)[ \t]+", re.IGNORECASE)
_CONTINUED = re.compile(r"\\[ \t]*$")
_DOCUMENT = re.compile(r"<<-?([\"']?)([A-Za-z_]\w*)\1(?=\s|$)")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::?-([^{}]*))?\}?")
PAIR = re.compile(r"""(?<!\w)(?:(\w+)=("[^"]*"|'[^']*'|\S*)|(\w+)[ \t]+(.*))""")
"""A variable with a value, as in `ENV` and in systemd units."""
DOCUMENT_INSTRUCTIONS = frozenset(("RUN", "COPY", "ADD"))


class Instruction(NamedTuple):
    """An instruction, without comments and the ends of its lines."""

    name: str
    content: Text
    documents: list[tuple[str, Text]]
    """Here-documents, with the files that they become."""


@dataclass(slots=True)
class _Stage:
    """The entry point and the command of a stage, which later stages inherit."""

    image: Image | None = None
    entry: list[Word] | None = None
    command: list[Word] = field(default_factory=list)
    is_own: bool = False
    """The stage itself has an entry point or a command."""


def read_dockerfile(source: Text) -> FileContent:
    """Returns the command lines of the stages that start vLLM, and of their scripts."""
    content = FileContent()
    reader = ShellReader()
    stages: dict[str, _Stage] = {}
    stage = _Stage()
    for instruction in instructions_of(source):
        if instruction.name == "FROM":
            content.lines += _lines_of(stage, reader)
            stage = _next_stage(instruction, stages, reader.variables)
        elif instruction.name in ("ENV", "ARG"):
            _read_variables(instruction, reader)
        elif instruction.name == "ENTRYPOINT":
            stage.entry = _words_of(instruction.content)
            stage.command = []
            stage.is_own = True
        elif instruction.name == "CMD":
            stage.command = _words_of(instruction.content)
            stage.is_own = True
        for name, document in instruction.documents:
            if names_server(document.text):
                content.add(_script(name, document, reader, stage))
    content.lines += _lines_of(stage, reader)
    return content


def instructions_of(source: Text) -> Iterator[Instruction]:
    """Yields the instructions of a Dockerfile."""
    lines = source.text.splitlines(keepends=True)
    offset = 0
    index = 0
    while index < len(lines):
        match = _INSTRUCTION.match(lines[index])
        if match is None:
            offset += len(lines[index])
            index += 1
            continue
        pieces: list[str] = []
        parts: list[Part] = []
        length = 0
        start = match.end()
        is_open = True
        while is_open and index < len(lines):
            line = lines[index]
            is_dropped = bool(pieces) and (not line.strip() or line.lstrip().startswith("#"))
            if not is_dropped:
                text = line.rstrip("\r\n")[start:]
                is_open = _CONTINUED.search(text) is not None
                text = _CONTINUED.sub("", text)
                pieces.append(f"{text} " if is_open else text)
                parts.append(Part(length, offset + start))
                length += len(pieces[-1])
            offset += len(line)
            index += 1
            start = 0
        name = match[1].upper()
        content = InnerText(source, "".join(pieces), parts)
        documents: list[tuple[str, Text]] = []
        if name in DOCUMENT_INSTRUCTIONS:
            words = [] if name == "RUN" else content.text.split()
            file = words[-1] if words else ""
            for found in _DOCUMENT.finditer(content.text):
                begin = offset
                while index < len(lines) and lines[index].strip() != found[2]:
                    offset += len(lines[index])
                    index += 1
                text = source.text[begin:offset]
                documents.append((file, InnerText(source, text, [Part(0, begin)])))
                if index < len(lines):
                    offset += len(lines[index])
                    index += 1
        yield Instruction(name, content, documents)


def _next_stage(
    instruction: Instruction, stages: dict[str, _Stage], variables: dict[str, str]
) -> _Stage:
    """Returns the stage that FROM begins, with the words that it inherits."""
    words = [word for word in instruction.content.text.split() if not word.startswith("--")]
    base = _filled(words[0], variables) if words else ""
    stage = _Stage(image=read_image(base))
    earlier = stages.get(base.lower())
    if earlier is not None:
        stage.image = earlier.image
        stage.entry = earlier.entry
        stage.command = list(earlier.command)
    if len(words) > 2 and words[1].lower() == "as":
        stages[words[2].lower()] = stage
    return stage


def _filled(text: str, variables: dict[str, str]) -> str:
    """Returns a text with the values of its variables; unknown ones stay as they are."""
    return _VARIABLE.sub(lambda match: variables.get(match[1]) or match[2] or match[0], text)


def _lines_of(stage: _Stage, reader: ShellReader) -> list[CommandLine]:
    if not stage.is_own or not (stage.entry or stage.command):
        return []
    words = filled((*(stage.entry or []), *stage.command), reader.variables)
    lines = container_lines(
        stage.image,
        words,
        words[0].place,
        variables=reader.variables,
        has_command=stage.entry is not None,
    )
    return [_in_image(line, stage, reader) for line in lines]


def _in_image(line: CommandLine, stage: _Stage, reader: ShellReader) -> CommandLine:
    line.version = stage.image.tag if stage.image is not None else ""
    line.is_in_container = bool(line.version)
    line.environment = {**reader.environment, **line.environment}
    return line


def _script(name: str, document: Text, reader: ShellReader, stage: _Stage) -> FileContent:
    """Returns the command lines of a script that is written in the Dockerfile."""
    if name and not is_code(name, document.text):
        version = stage.image.tag if stage.image is not None else ""
        inner = InnerFile(document, name, 1, reader.variables, reader.environment, version)
        return FileContent(inner=[inner])
    script = ShellReader(reader.variables, 1)
    lines = [_in_image(line, stage, reader) for line in script.read(document)]
    return FileContent(lines=lines, inner=script.inner)


def _read_variables(instruction: Instruction, reader: ShellReader) -> None:
    """Notes the variables of ENV and ARG; those of ARG exist while the image is built only."""
    for pair in PAIR.finditer(instruction.content.text):
        variable = pair[1] or pair[3]
        value = pair[2] if pair[1] else pair[4]
        reader.variables[variable] = value.strip("\"'")
        if instruction.name == "ENV":
            reader.environment[variable] = instruction.content.place(pair.start())


def _words_of(content: Text) -> list[Word]:
    """Returns the words of an instruction; those of its form without JSON begin with a shell."""
    if not content.text.lstrip().startswith("["):
        return [
            Word("sh", content.place(0)),
            Word("-c", content.place(0)),
            Word(content.text, content.place(0), is_quoted=True, content=content),
        ]
    try:
        texts = decode_untrusted(content.text, type=list[str])
    except UntrustedDataError:
        return []
    words = []
    offset = 0
    for text in texts[: MAX_WORDS + 1]:  # `Checker` rejects them
        quoted = content.text.find(f'"{text}"', offset)
        offset = max(offset, quoted)
        words.append(Word(text, content.place(offset), is_quoted=True))
        if quoted >= 0:
            offset += len(text) + 2
    return words
