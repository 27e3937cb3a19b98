"""The words of a `command` or `entrypoint` of a Compose file. Start reading at `compose_words`.

Compose replaces variables first, and splits a text with the library go-shellwords. Its rules are
not those of a shell: in double quotes a backslash disappears in front of every character, there are
no comments, and a character such as `&` ends the command.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from workbench.check.documents import Value
from workbench.check.findings import Finding
from workbench.check.rules import finding
from workbench.check.sources import MAX_WORDS, Word
from workbench.check.text import InnerText, Part, Text

_VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[A-Za-z_]\w*))")
_DEFAULT = re.compile(r":?-")
_PLACEHOLDER = re.compile(
    r"<[A-Za-z_][\w./:-]*(?: [A-Za-z_][\w./:-]*){0,8}>|\{\{[^{}\n]{1,1000}\}\}"
)
_KEPT = "\ue010"
"""Stands for each character of a variable without a value, which is no part of the grammar."""
ENDINGS = ";&|<>"
REFUSED = -1
MAX_DEPTH = 5
"""Defaults within defaults of variables."""
MAX_LENGTH = 64 << 10
"""Characters of a text with the defaults of its variables; a longer one is not split."""


class ComposeWords(NamedTuple):
    """The words of a text, and findings about the text."""

    words: list[Word]
    findings: list[Finding]


def compose_words(value: Value) -> ComposeWords:
    """Returns the words of a list, or of a text that Compose splits."""
    if value.is_list:
        return ComposeWords([_whole_word(each) for each in value], [])
    return _Splitter(_Filled(value.content)).split(value)


def filled(text: str) -> str:
    """Returns a text with the defaults of its variables; others stay as they are written."""
    return _Filled(Text("", text)).written() if "$" in text else text


def _whole_word(value: Value) -> Word:
    content = _Filled(value.content)
    text = content.written()
    inner = InnerText(content.source, text, content.parts)
    unknown = next(iter(content.unknown.values()), "")
    return Word(text, value.place, unknown, is_quoted=True, content=inner)


class _Filled:
    """A text with the defaults of its variables.

    `text` has a private character for each of an unknown variable, so that it has the length of the
    text that `written` returns.
    """

    def __init__(self, source: Text) -> None:
        self.source = source
        self.unknown: dict[int, str] = {}
        """The variables without a value, by their first characters in the text."""
        self._pieces: list[str] = []
        self._written: list[str] = []
        self._parts: list[Part] = []
        self._length = 0
        self._fill(0, len(source.text), 0)
        self.text = "".join(self._pieces)

    def written(self) -> str:
        """Returns the text with the names of variables that have no value."""
        return "".join(self._written)

    @property
    def parts(self) -> list[Part]:
        """The places of the characters in the source."""
        return self._parts or [Part(0, 0)]

    def _add(self, text: str, offset: int, *, is_unknown: bool = False) -> None:
        if is_unknown:
            self.unknown[self._length] = text
        self._parts.append(Part(self._length, offset))
        self._pieces.append(_KEPT * len(text) if is_unknown else text)
        self._written.append(text)
        self._length += len(text)

    def _fill(self, start: int, end: int, depth: int) -> None:
        text = self.source.text
        position = start
        match = _VARIABLE.search(text, position, end)
        while position < end and self._length <= MAX_LENGTH:
            stop = end if match is None else match.start()
            template = _PLACEHOLDER.search(text, position, stop)
            if template is not None:
                self._add(text[position : template.start()], position)
                self._add(template[0], template.start(), is_unknown=True)
                position = template.end()
                continue
            self._add(text[position:stop], position)
            if match is None:
                return
            position = self._add_variable(match, end, depth)
            match = _VARIABLE.search(text, position, end)

    def _add_variable(self, match: re.Match[str], end: int, depth: int) -> int:
        """Adds a variable, and returns its end."""
        text = self.source.text
        if match["dollar"]:
            self._add("$", match.start() + 1)
            return match.end()
        stop = match.end()
        if match["braced"]:
            stop = _end_of_braces(text, match.end(), end)
            default = _DEFAULT.match(text, match.end(), stop)
            if default is not None and depth < MAX_DEPTH:
                self._fill(default.end(), stop - 1, depth + 1)
                return stop
        name = text[match.start() : stop]
        self._add(name, match.start(), is_unknown=True)
        return stop


def _end_of_braces(text: str, position: int, end: int) -> int:
    """Returns the end of `${...}`, which may have variables in braces."""
    depth = 1
    while position < end:
        if text[position] == "}":
            depth -= 1
            if not depth:
                return position + 1
        elif text[position] == "{":
            depth += 1
        position += 1
    return end


class _Splitter:
    """Splits a text as go-shellwords does, without variables and backticks."""

    def __init__(self, content: _Filled) -> None:
        self._content = content
        self._text = InnerText(content.source, content.text, content.parts)
        self._written = content.written()
        self._words: list[Word] = []
        self._begin_word()
        self._quote = ""

    def _begin_word(self) -> None:
        self._characters: list[str] = []
        self._parts: list[Part] = []
        self._start = -1
        self._unknown = ""

    def split(self, value: Value) -> ComposeWords:
        """Returns the words, and a finding about a text that Compose refuses or cuts."""
        findings = []
        end = self._scan()
        if end == REFUSED or self._quote:
            reason = f"a {self._quote} without an end" if self._quote else "a bracket"
            message = f"Compose refuses this text, because of {reason}"
            fix = "write a list with an entry for each word"
            findings.append(finding("O117", value.place, message, fix=fix))
        elif end < len(self._text.text):
            rest = self._written[end:].strip()
            message = f"Compose leaves out {rest[:60]!r}: it splits words, and runs no shell"
            fix = "remove it, or run a shell: entrypoint: [bash, -c], and a list with one command"
            findings.append(finding("O116", self._text.place(end), message, fix=fix))
        return ComposeWords(self._words, findings)

    def _scan(self) -> int:
        """Reads all words; returns where the command ends."""
        text = self._text.text
        position = 0
        while position < len(text) and len(self._words) <= MAX_WORDS:
            character = text[position]
            if character in "\\'\"":
                position = self._mark(position)
            elif self._quote:
                self._add(position)
            elif character in " \t\r\n":
                self._end_word()
            elif character in "()`":
                position = self._end_of_substitution(position) - 1
                if position < 0:
                    return REFUSED
            elif character in ENDINGS:
                if character == ">" and self._characters and self._characters[0].isdigit():
                    self._begin_word()
                break
            else:
                self._add(position)
            position += 1
        self._end_word()
        return position

    def _mark(self, position: int) -> int:
        """Reads a backslash or a quotation mark; returns its last character."""
        text = self._text.text
        character = text[position]
        if character == "\\" and self._quote != "'":
            if position + 1 == len(text):
                self._quote = character
                return position
            self._add(position + 1)
            return position + 1
        if character != "\\" and self._quote in ("", character):
            self._quote = "" if self._quote else character
            self._start = position if self._start < 0 else self._start
        else:
            self._add(position)
        return position

    def _end_of_substitution(self, position: int) -> int:
        """Adds `$(...)` or backticks; returns the end, and 0 for another bracket."""
        text = self._text.text
        is_backtick = text[position] == "`"
        end = text.find("`" if is_backtick else ")", position + 1)
        is_substitution = text[position] == "(" and self._characters[-1:] == ["$"]
        if end < 0 or not (is_backtick or is_substitution):
            return 0
        for offset in range(position, end + 1):
            self._add(offset)
        self._unknown = self._unknown or text[position : end + 1]
        return end + 1

    def _add(self, offset: int) -> None:
        """Adds a character to the word."""
        if self._start < 0:
            self._start = offset
        index = len(self._characters)
        shift = offset - index
        if not self._parts or self._parts[-1].outer_offset - self._parts[-1].offset != shift:
            self._parts.append(Part(index, offset))
        self._characters.append(self._written[offset])
        self._unknown = self._unknown or self._content.unknown.get(offset, "")

    def _end_word(self) -> None:
        if self._start >= 0:
            text = "".join(self._characters)
            place = self._text.place(self._start)
            content = InnerText(self._text, text, self._parts or [Part(0, self._start)])
            self._words.append(Word(text, place, self._unknown, is_quoted=True, content=content))
        self._begin_word()
