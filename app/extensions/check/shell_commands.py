"""Finds `vllm serve` in commands of shell scripts, and in `docker run` of vLLM's image."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from app.extensions.check.findings import Place
from app.extensions.check.rules import finding
from app.extensions.check.shell_words import ARRAY, MAX_VALUE, expand, split_commands
from app.extensions.check.sources import MAX_WORDS, CommandLine, Word
from app.extensions.check.text import Text, joined
from config.vllm.image import MODULES

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_DECLARERS = frozenset(("declare", "local", "readonly", "typeset"))
IMAGE = re.compile(
    r"(?:[\w.-]+(?::\d+)?/)*(?:vllm-openai[\w-]*|vllm)(?::(?P<tag>[\w.-]+))?(?:@.*)?"
)
"""An image of vLLM. Its last part is vllm-openai, or vllm with a tag."""
_LAUNCHERS = frozenset(("exec", "nohup", "sudo", "time", "env", "uv", "run", "numactl"))
RUNTIMES = frozenset(("docker", "podman", "nerdctl"))
SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
PROGRAMS = SHELLS | {"vllm", "python", "python3"}
"""Programs that people write behind the image."""
MAX_EVALS = 3
"""`eval` within one another."""
ENVIRONMENT_FLAGS = frozenset(("-e", "--env"))


class ShellReader:
    """Reads the commands of a script in order, with the values of its variables."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = dict(variables or {})
        self.arrays: dict[str, list[Word]] = {}
        self.environment: dict[str, Place] = {}
        """Exported variables."""
        self._evals = 0

    def read(self, text: Text, start: int = 0, end: int | None = None) -> Iterator[CommandLine]:
        """Yields the command lines of vLLM."""
        for words in split_commands(text, start, end):
            is_eval = words[0].text == "eval"
            line = self._read_eval(words[1:]) if is_eval else self.read_command(words)
            if line is not None:
                yield line

    def read_command(self, words: list[Word]) -> CommandLine | None:
        """Returns the command line of vLLM in a command; notes the variables of others."""
        parts = (part for word in words for part in expand(word, self.variables, self.arrays))
        words = list(islice(parts, 2 * MAX_WORDS))  # `Checker` rejects a line with so many
        if words and words[0].text in _DECLARERS:
            words = [word for word in words[1:] if not word.text.startswith("-")] or words
        environment: dict[str, Place] = {}
        index = 0
        if words and words[0].text == "export":
            for word in words[1:]:
                self._assign(word, self.environment)
            return None
        while index < len(words):
            word = words[index]
            if ARRAY.fullmatch(word.text):
                index += self._assign_array(words[index:])
                continue
            if _ASSIGNMENT.fullmatch(word.text) and not word.text.startswith("-"):
                self._assign(word, environment)
            elif word.text not in _LAUNCHERS:
                break
            index += 1
        if index == len(words):
            return None
        line = arguments_of(words[index:])
        if line is not None and not line.is_in_container:  # a container has only its own variables
            line.environment = {**self.environment, **environment, **line.environment}
        return line

    def _read_eval(self, words: list[Word]) -> CommandLine | None:
        """Returns the command line of vLLM in the words of `eval`, which are code."""
        if self._evals == MAX_EVALS:
            return None
        self._evals += 1
        texts = [
            word.script if word.is_quoted else Text(word.place.file, word.text, word.place)
            for word in words
        ]
        line = next(self.read(joined(texts)), None)
        self._evals -= 1
        return line

    def _assign(self, word: Word, places: dict[str, Place]) -> None:
        match = _ASSIGNMENT.fullmatch(word.text)
        if match is None:
            return
        places[match[1]] = word.place
        if word.unknown:
            self.variables.pop(match[1], None)
            return
        value = match[3]
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
        before = self.arrays.get(match[1], []) if match[2] else []
        self.arrays[match[1]] = [*before, *elements][: 2 * MAX_WORDS]
        return count


def arguments_of(
    words: list[Word], variables: Mapping[str, str] | None = None
) -> CommandLine | None:
    """Returns the arguments of vLLM's server in a command; None for other commands.

    If the command is a shell, its script has these `variables`.
    """
    texts = [word.text for word in words]
    if texts[0] in RUNTIMES and "run" in texts:
        return _in_container(words)
    for index in range(len(words) - 1):
        is_vllm = texts[index].rpartition("/")[2] == "vllm"
        if is_vllm and texts[index + 1] == "serve":
            return CommandLine(words[index].place, words[index + 2 :])
        if texts[index] == "-m" and texts[index + 1] in MODULES:
            return CommandLine(words[index].place, words[index + 2 :])
    if texts[0].rpartition("/")[2] not in SHELLS:
        return None
    scripts = (word.script for word in words[1:] if not word.text.startswith("-"))
    lines = (line for script in scripts for line in ShellReader(variables).read(script))
    return next(lines, None)


def _in_container(words: list[Word]) -> CommandLine | None:
    line = CommandLine(words[0].place)
    has_entry_point = True
    for index, word in enumerate(words):
        if word.text.startswith("--entrypoint"):
            has_entry_point = False
        if word.text in ENVIRONMENT_FLAGS and index + 1 < len(words):
            name = words[index + 1].text.partition("=")[0]
            line.environment[name] = words[index + 1].place
        match = IMAGE.fullmatch(word.text)
        if match is None or not index or ("/" not in word.text and not match["tag"]):
            continue
        if words[index - 1].text in ("--name", "--network", "-v", "-e"):
            continue
        line.version = match["tag"] or "latest"
        line.is_in_container = True
        return behind_entry_point(line, words[index + 1 :], has_entry_point=has_entry_point)
    return None


def behind_entry_point(
    line: CommandLine,
    words: list[Word],
    variables: Mapping[str, str] | None = None,
    *,
    has_entry_point: bool,
) -> CommandLine | None:
    """Returns the line with the arguments of a container of vLLM's image.

    Its entry point is `vllm serve`, so that a program among the arguments is an argument, too.
    """
    program = words[0].text.rpartition("/")[2] if words else ""
    if program not in PROGRAMS:
        line.words = words
        return line if has_entry_point else None
    inner = arguments_of(words, variables)
    if has_entry_point:
        line.findings.append(
            finding(
                "O110",
                words[0].place,
                f"the entry point of the image is `vllm serve`, so {words[0].text} is its model,"
                " and not a program",
                fix="write only the arguments of `vllm serve`, or set another entry point",
            )
        )
    if inner is not None:
        line.words = inner.words
    return line if inner is not None or has_entry_point else None
