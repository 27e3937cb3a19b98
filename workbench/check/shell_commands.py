"""Finds `vllm serve` in commands of shell scripts, and in `docker run` of vLLM's images.

Start reading at `ShellReader.read`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from vllm_facts.facts import OPTIONS
from vllm_facts.history import read_history
from vllm_facts.image import MODULES, OTHER_COMMANDS, SERVE
from vllm_facts.images import Image, read_image
from workbench.check.content import InnerFile
from workbench.check.findings import Finding, Place
from workbench.check.positional import Parameters, split_shell
from workbench.check.rules import finding
from workbench.check.shell_words import (
    ARRAY,
    MAX_DOCUMENTS,
    MAX_VALUE,
    ShellCommand,
    expand,
    holds_code,
    read_commands,
)
from workbench.check.sources import (
    MAX_BYTES,
    MAX_WORDS,
    CommandLine,
    Word,
    is_code,
    names_command,
    names_server,
)
from workbench.check.text import InnerText, Part, Text, joined

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"\w+")
_DECLARERS = frozenset(("declare", "local", "readonly", "typeset"))
_LAUNCHERS = frozenset(("exec", "nohup", "sudo", "time", "env", "uv", "poetry", "numactl"))
_RUNNERS = frozenset(("uv", "poetry"))
"""Launchers whose command is behind `run`."""
RUNTIMES = frozenset(("docker", "podman", "nerdctl"))
SWITCHES = re.compile(
    r"-[ditPq]+|--(?:rm|init|privileged|read-only|detach|interactive|tty|quiet|replace"
    r"|publish-all|no-healthcheck|oom-kill-disable|sig-proxy|disable-content-trust)"
)
"""Flags of `docker run` without a value."""
SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
PROGRAMS = SHELLS | {"vllm", "python", "python3"}
"""Programs that people write behind the image."""
PRINTERS = frozenset(
    ("echo", "printf", "grep", "egrep", "pgrep", "pkill", "killall", "ps", "which", "type", "cat")
)
"""Programs whose arguments are texts, and no commands."""
SCRIPT_SUFFIXES = (".sh", ".bash")
MAX_EVALS = 3
"""`eval`, and scripts in quotes, within one another."""
MAX_REPLACED = 2 * MAX_BYTES
"""Characters of the values in a script's commands; further variables are not known."""
ENVIRONMENT_FLAGS = frozenset(("-e", "--env"))
ENTRY_FLAG = "--entrypoint"
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(?:=.*)?", re.DOTALL)
_WHOLE_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_PATH = re.compile(r"[./~].*|.*\.(?:sh|py)", re.DOTALL)


class ShellReader:
    """Reads the commands of a script in order, with the values of its variables."""

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        depth: int = 0,
        *,
        is_prose: bool = False,
        parameters: list[Word] | None = None,
    ) -> None:
        """`depth` is the number of scripts around this one.

        `is_prose`: the text may be no script, so that only commands that begin with vLLM count.
        `parameters` are the words behind the script, from its name (`$0`) on.
        """
        self.parameters = Parameters(parameters)
        self.variables = dict(variables or {})
        self.arrays: dict[str, list[Word]] = {}
        self.environment: dict[str, Place] = {}
        """Exported variables."""
        self.inner: list[InnerFile] = []
        """Here-documents that are files of another kind."""
        self._depth = depth
        self._is_prose = is_prose
        self._has_continuations = True
        self._left = MAX_REPLACED
        self._last: _Last | None = None

    def read(self, text: Text, start: int = 0, end: int | None = None) -> Iterator[CommandLine]:
        """Yields the command lines of vLLM."""
        if self._is_prose:
            self._has_continuations = "\\\n" in text.text
        self.parameters.enter(text)
        for command in read_commands(text, start, end):
            if command.words:
                yield from self._read(command)
            if command.document is not None:
                yield from self._read_document(command, command.document)

    def _read(self, command: ShellCommand) -> Iterator[CommandLine]:
        first = command.words[0]
        if self._last is not None and command.follows_line and self._belongs(first, self._last):
            yield from self._lost_options(command, self._last)
            return
        self._last = None
        if first.text == "eval":
            yield from self._read_eval(command.words[1:])
            return
        lines = self.read_command(command.words, output=command.output)
        if lines or _starts_container(command.words):
            self._last = _Last(lines, command.words)
            self._report_blank(lines)
        yield from lines

    def _report_blank(self, lines: list[CommandLine]) -> None:
        """Reports a blank behind a backslash at the end of a line, which is a separate word."""
        for line in lines:
            if line.words and not line.words[-1].text.strip() and not line.words[-1].is_quoted:
                place = line.words.pop().place
                message = "a blank is behind the backslash, so that the command ends in this line"
                fix = "remove what is behind the backslash"
                line.findings.append(finding("O115", place, message, fix=fix))
                assert self._last is not None
                self._last.is_reported = True

    def _belongs(self, first: Word, last: _Last) -> bool:
        """Returns whether a line is meant as a part of the command line before the line.

        In a text without continued lines, which may be no script, indented lines are.
        """
        if self._is_prose and not self._has_continuations:
            return bool(last.lines) and first.place.column > last.words[0].place.column
        return last.lacks(first)

    def _lost_options(self, command: ShellCommand, last: _Last) -> Iterator[CommandLine]:
        """Reports options that a shell takes for another command; yields a line without one.

        The command line before the options has ended. Only the first of such lines is reported.
        A text that may be no script belongs to a program that splits it at blanks.
        """
        if self._is_prose and not self._has_continuations:
            for each in last.lines[-1:]:
                each.words += self._expanded(command.words)
            return
        if last.is_reported:
            return
        last.is_reported = True
        first = command.words[0]
        last_word = last.words[-1]
        end = last_word.place.line + last_word.text.count("\n")
        if command.is_after_comment:
            fix = "move the comment above the command: it ends the continued line"
        elif first.place.line > end + 1:
            fix = f"remove what is between line {end} and this one, or end it with a backslash"
        else:
            fix = f"end line {end} with a backslash"
        message = f"the shell runs {first.text} as a command, because the line before has ended"
        found = finding("O115", first.place, message, fix=fix)
        if last.lines:
            last.lines[-1].findings.append(found)
        else:
            yield CommandLine(first.place, findings=[found])

    def read_command(self, words: list[Word], output: str = "") -> list[CommandLine]:
        """Returns the command lines of vLLM in a command; notes the variables of others.

        `output` is the file that the command writes.
        """
        words = list(islice(self._expanded(words), 2 * MAX_WORDS))  # `Checker` rejects so many
        environment: dict[str, Place] = {}
        words = self._without_assignments(words, environment)
        if not words:
            return []
        if words[0].text in PRINTERS and not output.endswith(SCRIPT_SUFFIXES):
            return []
        if words[0].text in ("set", "shift") and self.parameters.change(words):
            return []
        lines = lines_of(words, self.variables, self._depth, is_prose=self._is_prose)
        for line in lines:
            if not line.is_in_container:  # a container has only its own variables
                line.environment = {**self.environment, **environment, **line.environment}
        return lines

    def _code_of(self, word: Word) -> Text:
        """Returns a word of `eval` as code; a variable with a whole command is replaced."""
        match = _WHOLE_VARIABLE.fullmatch(word.text)
        value = self.variables.get(match[1], "") if match is not None else ""
        if self._left >= 0 and names_command(value):
            self._left -= len(value)
            return InnerText(Text(word.place.file, value, word.place), value, [Part(0, 0)])
        return word.script if word.is_quoted else Text(word.place.file, word.text, word.place)

    def _without_assignments(self, words: list[Word], environment: dict[str, Place]) -> list[Word]:
        """Returns the words from the program on; notes the variables before the program."""
        if words and words[0].text == "export":
            for word in words[1:]:
                self._assign(word, self.environment)
            return []
        if words and words[0].text in _DECLARERS:
            first = next((k for k in range(1, len(words)) if words[k].text[:1] != "-"), len(words))
            words = words[first:]
        index = 0
        while index < len(words):
            word = words[index]
            if ARRAY.fullmatch(word.text):
                index += self._assign_array(words[index:])
                continue
            if _ASSIGNMENT.fullmatch(word.text) and not word.text.startswith("-"):
                self._assign(word, environment)
            elif word.text not in _LAUNCHERS:
                is_run = word.text == "run" and index and words[index - 1].text in _RUNNERS
                if not is_run:
                    break
            index += 1
        return words[index:]

    def _expanded(self, words: list[Word]) -> Iterator[Word]:
        """Yields words of the script with the values of its variables."""
        for word in words:
            if not word.unknown or self._left < 0:
                yield word
                continue
            parts = expand(word, self.variables, self.arrays, parameters=self.parameters)
            self._left -= sum(len(part.text) + 1 for part in parts)
            yield from parts

    def _read_eval(self, words: list[Word]) -> Iterator[CommandLine]:
        """Yields the command lines of vLLM in the words of `eval`, which are code."""
        if self._depth >= MAX_EVALS or not words:
            return
        self._depth += 1
        yield from self.read(joined([self._code_of(word) for word in words]))
        self._depth -= 1

    def _read_document(self, command: ShellCommand, document: Text) -> Iterator[CommandLine]:
        """Yields the command lines of a here-document: of a script, or of a file's content."""
        if self._depth >= MAX_DOCUMENTS or "vllm" not in document.text:
            return
        if not holds_code(command.words) or command.output.endswith((".py", ".md", ".txt")):
            return
        if not is_code(command.output, document.text):
            names = set(_NAME.findall(document.text))
            variables = {name: self.variables[name] for name in names if name in self.variables}
            inner = InnerFile(document, command.output, self._depth + 1, variables)
            self.inner.append(inner)
            return
        last = self._last
        self._last = None
        self._depth += 1
        yield from self.read(document)
        self._depth -= 1
        self._last = last

    def _assign(self, word: Word, places: dict[str, Place]) -> None:
        match = _ASSIGNMENT.fullmatch(word.text)
        if match is None:
            return
        places[match[1]] = word.place
        value = match[3]
        if word.unknown and not names_command(value):
            self.variables.pop(match[1], None)
            return
        if match[2]:
            value = f"{self.variables.get(match[1], '')}{value}"
        self.variables.pop(match[1], None)
        if len(value) <= MAX_VALUE:
            self.variables[match[1]] = value

    def _assign_array(self, words: list[Word]) -> int:
        """Notes the array that begins with the first word; returns its number of words."""
        match = ARRAY.fullmatch(words[0].text)
        assert match is not None
        place = words[0].place
        place = place._replace(column=place.column + match.start(3))
        elements = [replace(words[0], text=match[3], place=place)]
        opened = 1 + match[3].count("(") - match[3].count(")")
        count = 1
        while opened > 0 and count < len(words):
            word = words[count]
            if not word.is_quoted:
                opened += word.text.count("(") - word.text.count(")")
            elements.append(word)
            count += 1
        last = elements[-1]
        if opened <= 0 and last.text.endswith(")"):
            elements[-1] = replace(last, text=last.text[:-1])
        elements = [word for word in elements if word.text or word.is_quoted]
        present = self.arrays.get(match[1], []) if match[2] else []
        self.arrays[match[1]] = [*present, *elements][: 2 * MAX_WORDS]
        return count


class _Last:
    """The command in front of a line, which can have lost its options."""

    def __init__(self, lines: list[CommandLine], words: list[Word]) -> None:
        self.lines = lines
        self.words = words
        self.is_reported = False

    def lacks(self, word: Word) -> bool:
        """Returns whether the first word of a line is an option, or the image of a container."""
        if _OPTION.fullmatch(word.text):
            return True
        is_image = "/" in word.text and read_image(word.text) is not None
        return is_image and not self.lines


def filled(words: Iterable[Word], variables: Mapping[str, str]) -> list[Word]:
    """Returns words that are no part of a script with the values of its variables."""
    parts: list[Word] = []
    for word in words:
        if "$" not in word.text or word.unknown or " " in word.text:
            parts.append(word)
        else:
            parts += expand(replace(word, unknown=word.text, is_quoted=True), variables)
    return parts


def _starts_container(words: list[Word]) -> bool:
    return words[0].text in RUNTIMES and any(word.text == "run" for word in words[:3])


def lines_of(
    words: list[Word],
    variables: Mapping[str, str] | None = None,
    depth: int = 0,
    *,
    is_prose: bool = False,
) -> list[CommandLine]:
    """Returns the command lines of vLLM's server in a command.

    If the command is a shell, its script has these `variables`; `depth` is the number of scripts
    around it. `is_prose`: only a command that begins with vLLM counts.
    """
    program = words[0].text.rpartition("/")[2]
    is_runtime = program in RUNTIMES
    if is_runtime and any(word.text == "run" for word in words):
        lines = _in_container(words, variables)
        if lines is not None:
            return lines
    line = _direct_line(words)
    if line is not None and is_prose and not (is_runtime or _begins_with_server(program)):
        line = None
    if line is not None:
        line.is_in_container = is_runtime
        return [line]
    if depth >= MAX_EVALS:
        return []
    lines = _lines_of_scripts(words, variables, depth, is_prose=is_prose)
    for line in lines:
        line.is_in_container = line.is_in_container or is_runtime
    return lines


def _lines_of_scripts(
    words: list[Word], variables: Mapping[str, str] | None, depth: int, *, is_prose: bool
) -> list[CommandLine]:
    """Returns the command lines in the script of a shell, or in quoted words of a program."""
    is_shell = words[0].text.rpartition("/")[2] in SHELLS
    parts = None
    if is_shell:
        parts = split_shell(words)
    lines: list[CommandLine] = []
    if parts is not None:
        script, words = parts
        reader = ShellReader(variables, depth + 1, is_prose=is_prose, parameters=words)
        lines += reader.read(script.script)
        if lines or not words:
            return lines
    else:
        words = words[1:]
    for word in words:
        is_script = is_shell and not word.text.startswith("-")
        if is_script or (word.is_quoted and names_server(word.text)):
            reader = ShellReader(variables, depth + 1, is_prose=is_prose or not is_script)
            lines += reader.read(word.script)
    return lines


def _begins_with_server(program: str) -> bool:
    return program == "vllm" or program.startswith("python")


def _direct_line(words: list[Word]) -> CommandLine | None:
    """Returns the command line of `vllm serve` that is among the words."""
    texts = [word.text for word in words]
    for index in range(len(words) - 1):
        is_vllm = texts[index].rpartition("/")[2] == "vllm"
        if is_vllm and texts[index + 1] == "serve":
            return CommandLine(words[index].place, words[index + 2 :])
        if texts[index] == "-m" and texts[index + 1] in MODULES:
            command = texts[index + 2 : index + 3]
            if not OTHER_COMMANDS.isdisjoint(command):
                return None
            start = index + 2 + command.count(SERVE)
            return CommandLine(words[index].place, words[start:])
    return None


def _in_container(
    words: list[Word], variables: Mapping[str, str] | None
) -> list[CommandLine] | None:
    """Returns the lines of `docker run` with an image of vLLM; None for another image."""
    environment: dict[str, Place] = {}
    entry: Word | None = None
    for index, word in enumerate(words):
        previous = words[index - 1].text if index else ""
        if word.text.startswith(f"{ENTRY_FLAG}="):
            entry = replace(word, text=word.text.partition("=")[2])
        takes_value = previous.startswith("-") and "=" not in previous
        if takes_value and not SWITCHES.fullmatch(previous):
            if previous in ENVIRONMENT_FLAGS:
                environment[word.text.partition("=")[0]] = word.place
            elif previous == ENTRY_FLAG:
                entry = word
            continue
        image = read_image(word.text)
        if image is None or not index or not ("/" in word.text or ":" in word.text):
            continue
        arguments = words[index + 1 :]
        if entry is not None:
            arguments = [entry, *arguments] if entry.text else arguments
        lines = container_lines(
            image, arguments, words[0].place, variables=variables, has_command=entry is not None
        )
        for line in lines:
            line.environment = {**environment, **line.environment}
        return lines
    return None


def container_lines(
    image: Image | None,
    words: list[Word],
    place: Place,
    *,
    variables: Mapping[str, str] | None = None,
    has_command: bool,
) -> list[CommandLine]:
    """Returns the command lines of vLLM in a container.

    `words` are its command and arguments; the command replaces the entry point of the image. If the
    entry point is `vllm serve`, a program among the arguments is an argument, too.
    """
    lines = _container_lines(image, words, place, variables=variables, has_command=has_command)
    for line in lines:
        line.version = image.tag if image is not None else ""
        line.is_other_build = image is not None and image.is_other_build
        line.is_in_container = True
    return lines


def _container_lines(
    image: Image | None,
    words: list[Word],
    place: Place,
    *,
    variables: Mapping[str, str] | None,
    has_command: bool,
) -> list[CommandLine]:
    if not words:
        starts = image is not None and image.starts_server and not has_command
        return [CommandLine(place)] if starts else []
    if has_command or image is None:
        lines = _split_lines(words, variables) or lines_of(words, variables)
        return lines or _joined_lines(words, variables)
    first = words[0].text.rpartition("/")[2]
    is_program = first in PROGRAMS or _PATH.fullmatch(words[0].text) is not None
    if image.starts_server or image.is_copy:
        if first not in PROGRAMS:
            is_line = len(words[0].text.split()) > 1
            lines = _split_lines(words, variables) if is_line else []
            return lines or [CommandLine(place, words)]
        if not image.starts_server:
            return lines_of(words, variables)
        return _behind_entry_point(words, place, variables)
    lines = lines_of(words, variables) or _split_lines(words, variables, is_certain=False)
    if lines or is_program or not _are_options(words):
        return lines
    return [CommandLine(place, words[1:] if first == "serve" else words)]


def _behind_entry_point(
    words: list[Word], place: Place, variables: Mapping[str, str] | None
) -> list[CommandLine]:
    lines = lines_of(words, variables) or [CommandLine(place)]
    lines[0].findings.append(
        finding(
            "O110",
            words[0].place,
            f"the entry point of the image is `vllm serve`, so {words[0].text} is its model, and"
            " not a program",
            fix="write only the arguments of `vllm serve`, or set another entry point",
        )
    )
    return lines


def _split_lines(
    words: list[Word], variables: Mapping[str, str] | None, *, is_certain: bool = True
) -> list[CommandLine]:
    """Returns the lines of a command that is written as one word, which is no program.

    `is_certain` is False if the entry point of the image may be a shell, which splits the word.
    """
    first = words[0]
    if first.unknown or len(first.text.split()) < 2:
        return []
    parts = [Word(part, first.place) for part in first.text.split()[:MAX_WORDS]]
    if parts[0].text.rpartition("/")[2] in SHELLS:
        lines = lines_of([*parts, *words[1:]], variables)
    else:
        lines = list(ShellReader(variables, 1).read(first.script))
    if lines and is_certain:
        lines[0].findings.append(_one_word(first))
    return lines


def _joined_lines(words: list[Word], variables: Mapping[str, str] | None) -> list[CommandLine]:
    """Returns the lines of a program whose first argument is several words in one entry."""
    first = next((word for word in words[1:3] if len(word.text.split()) > 1), None)
    if first is None or first.unknown or not names_command(" ".join(w.text for w in words[:3])):
        return []
    parts: list[Word] = []
    for word in words:
        pieces = word.text.split()[:MAX_WORDS] if word is first else [word.text]
        parts += [replace(word, text=piece) for piece in pieces]
    lines = lines_of(parts, variables)
    for line in lines[:1]:
        line.findings.append(_one_word(first))
    return lines


def _one_word(word: Word) -> Finding:
    shown = word.text if len(word.text) <= 40 else f"{word.text[:40]}..."
    message = f"{shown!r} is one word, and no program or option has this name"
    return finding("O114", word.place, message, fix="write an entry for each word")


def _are_options(words: list[Word]) -> bool:
    """Returns whether words are arguments of vLLM's server: a model, and mostly its options."""
    all_options = read_history().options
    names = [
        word.text.partition("=")[0].partition(".")[0].replace("_", "-")
        for word in words
        if word.text.startswith("--")
    ]
    options = [name for name in names if name in all_options or name.removeprefix("--") in OPTIONS]
    first = words[0].text
    has_model = "--model" in names or first == "serve" or ("/" in first and first[0] != "-")
    return has_model and 2 * len(options) >= len(names)
