"""Splits shell code into commands whose words know their places. Start reading at `split_commands`.

The words are split as in a POSIX shell, with quotes, escapes, comments, continued lines,
redirections and here-documents. Control flow is not interpreted: each command is read as if it ran.
`shlex` is not used, because it gives no places, and is slow for long words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from workbench.check.positional import Parameters
from workbench.check.sources import Word
from workbench.check.text import InnerText, Part, Text

_VARIABLE = re.compile(
    r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}$]*)"
    r"|:\+(?P<present>[^}$]*))?\}"
    r"|(?P<other>\([^\n]{0,200}\)?|[{@*#?!$]))"
)
_BRACED = re.compile(r"\$\{[^{}\n]{1,1000}\}")
_CONTROL = re.compile(
    r"\{\{-?\s*else\s*-?\}\}[^\n]{0,1000}?\{\{-?\s*end\s*-?\}\}"
    r"|\{\{-?\s*(?:if|else|end|range|with)\b[^{}\n]{0,1000}\}\}"
)
"""Of a condition in a Go template, the first branch counts."""
_ACTION = re.compile(r"\{\{[^{}\n]{1,1000}\}\}")
"""A value of a Go template, such as `{{ .Spec.Model.Name }}`; it may be anything."""
_BRACKETED = re.compile(r"(?<![<\d&])<[A-Za-z_][\w./:-]*(?: [A-Za-z_][\w./:-]*){0,8}>(?!>)")
"""A placeholder such as <your model>."""
_KEPT = str.maketrans(" \t\"'<>", "\ue000\ue001\ue002\ue003\ue004\ue005")
"""Characters of templates and `${NAME:+--option "$NAME"}` that neither end nor begin a word."""
_RESTORED = {mark: character for character, mark in _KEPT.items()}
_WHOLE_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_QUOTED = re.compile(r"'[^']*'|\\.|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_PLAIN = re.compile(r"[^\s\\'\"`$;&|()<>]+")
_BLANKS = re.compile(r"[ \t\r]+")
_CONTINUED = re.compile(r"\\\r?\n")
_SUBSTITUTION = re.compile(r"[<>]\(")
_BRACKETS = re.compile(r"[()]")
_SEPARATOR = re.compile(r"\n|&&|\|\||;;&?|;&|\|&|[;|&()]")
_REDIRECTION = re.compile(
    r"(?:\d{0,3}|\{\w{1,50}\})(?P<operator><<<|<<-?|<>|<&|>>|>\||>&|[<>])|&>>?"
)
_ESCAPED = re.compile(r'\\(?:(["\\$`])|\r?\n)')
_INTERPRETERS = frozenset(("python", "python3", "node", "perl", "ruby", "jq", "psql", "mysql"))
"""Programs whose here-documents are not shell code."""
_KEYWORDS = frozenset(("then", "do", "else", "elif", "if", "while", "until", "!", "{", "}"))
"""Words in front of a command."""
ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)", re.DOTALL)
"""The first word of an array: its name, `+` for more elements, and the first element."""
_ARRAY_START = re.compile(r"[A-Za-z_]\w*\+?=")
MAX_DOCUMENTS = 3
"""Here-documents within one another."""
MAX_QUOTED_LINES = 500
"""Most lines of one quoted text; a quotation mark without an end in these is a character."""
MAX_REREAD = 1 << 20
"""Characters that are searched for the end of quotations that have none."""
MAX_VALUE = 16 << 10
"""Characters of a word with the values of its variables; a longer one is not known."""
MAX_BRACKETS = 50
"""Brackets within one another in `$(...)`."""


class ShellCommand(NamedTuple):
    """The words of a command, without redirections, and its surroundings."""

    words: list[Word]
    follows_line: bool = False
    """The previous command ended with its line, and not with an operator."""
    is_after_comment: bool = False
    """A comment stands between the two."""
    output: str = ""
    """File that the output goes to."""
    document: Text | None = None
    """The text of a here-document."""


def split_commands(
    text: Text, start: int = 0, end: int | None = None, depth: int = 0
) -> Iterator[list[Word]]:
    """Yields the words of each command in a part of a text; variables are not replaced.

    `Word.unknown` has the written word if it contains variables. The commands of a here-document
    follow those of its line; `depth` is the number of documents around the part.
    """
    for command in read_commands(text, start, end):
        if command.words:
            yield command.words
        document = command.document
        if document is not None and depth < MAX_DOCUMENTS and holds_code(command.words):
            yield from split_commands(document, depth=depth + 1)


def holds_code(words: list[Word]) -> bool:
    """Returns whether the here-document of a command can be the code of a shell."""
    return _INTERPRETERS.isdisjoint(word.text.rpartition("/")[2] for word in words)


def read_commands(text: Text, start: int = 0, end: int | None = None) -> Iterator[ShellCommand]:
    """Yields the commands in a part of a text; variables are not replaced."""
    end = len(text.text) if end is None else end
    return _Scanner(text, start, end).commands()


class _Scanner:
    """Reads a part of a text from its first character to its last."""

    def __init__(self, text: Text, start: int, end: int) -> None:
        self._text = text
        self._offset = start
        self._code = _with_kept_blanks(text.text[start:end])
        self._position = 0
        self._line_ends = list(accumulate(map(len, self._code.splitlines(keepends=True))))
        self._reread = 0
        self._words: list[Word] = []
        self._output = ""
        self._delimiters: list[str] = []
        self._follows_line = False
        self._has_comment_before = False
        self._has_comment_within = False

    def commands(self) -> Iterator[ShellCommand]:
        """Yields the commands."""
        code = self._code
        while self._position < len(code):
            blanks = _BLANKS.match(code, self._position) or _CONTINUED.match(code, self._position)
            if blanks is not None:
                self._position = blanks.end()
                continue
            if code[self._position] == "#":
                self._skip_comment()
                continue
            redirection = _REDIRECTION.match(code, self._position)
            if redirection is not None and not _SUBSTITUTION.match(code, self._position):
                self._redirect(redirection)
                continue
            separator = _SEPARATOR.match(code, self._position)
            if separator is None:
                self._add_word()
                continue
            self._position = separator.end()
            document = self._document() if separator[0] == "\n" else None
            if self._words or document is not None:
                yield self._command(document)
                self._follows_line = separator[0] == "\n"
            elif separator[0] != "\n":
                self._follows_line = False
        if self._words:
            yield self._command(None)

    def _command(self, document: Text | None) -> ShellCommand:
        command = ShellCommand(
            words=self._words,
            follows_line=self._follows_line,
            is_after_comment=self._has_comment_before,
            output=self._output,
            document=document,
        )
        self._words = []
        self._output = ""
        self._has_comment_before = self._has_comment_within
        self._has_comment_within = False
        return command

    def _skip_comment(self) -> None:
        if self._words:
            self._has_comment_within = True
        else:
            self._has_comment_before = True
        self._skip_line()

    def _skip_line(self) -> None:
        self._position = _line_end(self._code, self._position)

    def _redirect(self, match: re.Match[str]) -> None:
        """Leaves out a redirection with its file; notes the end of a here-document."""
        self._position = match.end()
        operator = match["operator"] or match[0]
        blanks = _BLANKS.match(self._code, self._position)
        if blanks is not None:
            self._position = blanks.end()
        _, token = self._token()
        if ">" in operator and "&" not in operator[1:]:
            self._output = token.translate(_RESTORED)
        if operator in ("<<", "<<-") and token:
            self._delimiters.append(token.translate(_RESTORED))

    def _document(self) -> Text | None:
        """Takes the here-documents behind a line, and returns the first one."""
        first: Text | None = None
        for delimiter in self._delimiters:
            begin = stop = self._position
            while self._position < len(self._code):
                stop = _line_end(self._code, self._position)
                line = self._code[self._position : stop]
                line_start = self._position
                self._position = min(len(self._code), stop + 1)
                if line.strip() == delimiter:
                    stop = line_start
                    break
            if first is None:
                first = self._part(begin, stop)
        self._delimiters = []
        return first

    def _part(self, begin: int, stop: int) -> Text:
        start = self._offset + begin
        content = self._text.text[start : self._offset + stop]
        return InnerText(self._text, content, [Part(0, start)])

    def _add_word(self) -> None:
        """Adds a word, or the words of an array."""
        start, token = self._token()
        if self._position == start:  # a character that no rule knows
            self._position += 1
            return
        written = self._code[start : self._position].translate(_RESTORED)
        token = token.translate(_RESTORED)
        is_array = self._code[self._position : self._position + 1] == "("
        if is_array and _ARRAY_START.fullmatch(written):
            self._position += 1
            self._words.append(Word(f"{written}(", self._text.place(self._offset + start)))
            self._add_elements()
            return
        if not self._words and written in _KEYWORDS:
            return
        self._words.append(self._word(start, written, token))

    def _add_elements(self) -> None:
        """Adds the elements of an array, and its closing bracket, which are in several lines."""
        code = self._code
        while self._position < len(code):
            character = code[self._position]
            continued = _CONTINUED.match(code, self._position)
            if continued is not None:
                self._position = continued.end()
            elif character.isspace():
                self._position += 1
            elif character == "#":
                self._skip_line()
            elif character == ")":
                self._words.append(Word(")", self._text.place(self._offset + self._position)))
                self._position += 1
                return
            else:
                start, token = self._token()
                if self._position == start:
                    self._position += 1
                    continue
                written = code[start : self._position].translate(_RESTORED)
                self._words.append(self._word(start, written, token.translate(_RESTORED)))

    def _word(self, start: int, written: str, token: str) -> Word:
        is_quoted = written.startswith(('"', "'"))
        variable = _QUOTED.sub(_without_literal, written)
        has_variables = "$" in variable or "`" in variable
        unknown = written if has_variables or _ACTION.search(written) else ""
        content = None
        if is_quoted:
            content = _content(self._text, written, token, self._offset + start)
        is_assignment = _ARRAY_START.match(written) is not None
        return Word(
            text=token,
            place=self._text.place(self._offset + start),
            unknown=unknown,
            is_quoted=is_quoted,
            is_whole=is_assignment or "$" not in _QUOTED.sub("", written),
            content=content,
        )

    def _token(self) -> tuple[int, str]:
        """Reads a word; returns its first character, and its value without quotes."""
        code = self._code
        start = position = self._position
        pieces: list[str] = []
        while position < len(code):
            plain = _PLAIN.match(code, position)
            if plain is not None:
                pieces.append(plain[0])
                position = plain.end()
                continue
            character = code[position]
            if character == "\\":
                continued = _CONTINUED.match(code, position)
                if continued is not None:
                    position = continued.end()
                    continue
                pieces.append(code[position + 1 : position + 2])
                position += 2
            elif character in "'\"`":
                stop = self._end_of_quote(character, position + 1)
                text = code[position + 1 : stop]
                if character == '"':
                    text = _ESCAPED.sub(_unescaped, text)
                elif character == "`":
                    text = f"`{text}`"
                pieces.append(text)
                position = stop + 1
            elif character == "$":
                stop = self._end_of_variable(position)
                pieces.append(code[position:stop])
                position = stop
            elif _SUBSTITUTION.match(code, position):
                stop = self._end_of_brackets(position + 1)
                pieces.append(code[position:stop])
                position = stop
            else:
                break
        self._position = min(position, len(code))
        return start, "".join(pieces)

    def _end_of_variable(self, position: int) -> int:
        """Returns the end of `$(...)`; of other variables, that of the dollar sign."""
        code = self._code
        if code[position + 1 : position + 2] == "(":
            return self._end_of_brackets(position + 1)
        if code[position + 1 : position + 2] == "{":
            brace = code.find("}", position, position + 1_000)
            line_end = code.find("\n", position, position + 1_000)
            if brace >= 0 and not 0 <= line_end < brace:
                return brace + 1
        return position + 1

    def _end_of_brackets(self, position: int) -> int:
        """Returns the end of brackets; that of their line if they are not closed."""
        depth = 0
        limit = self._limit(position)
        for match in _BRACKETS.finditer(self._code, position, limit):
            depth += 1 if match[0] == "(" else -1
            if not depth:
                return match.end()
            if depth > MAX_BRACKETS:
                break
        self._reread += limit - position
        return _line_end(self._code, position)

    def _end_of_quote(self, character: str, position: int) -> int:
        """Returns the end of a quotation; that of its line if there is none."""
        code = self._code
        limit = self._limit(position)
        stop = position
        while True:
            stop = code.find(character, stop, limit)
            if stop < 0:
                break
            if character != "'" and _is_escaped(code, stop, position):
                stop += 1
                continue
            return stop
        self._reread += limit - position
        return _line_end(code, position)

    def _limit(self, position: int) -> int:
        """Returns where the search for the end of a quotation ends."""
        if self._reread > MAX_REREAD:
            return _line_end(self._code, position)
        line = bisect_right(self._line_ends, position)
        return self._line_ends[min(line + MAX_QUOTED_LINES, len(self._line_ends)) - 1]


def _with_kept_blanks(code: str) -> str:
    """Returns code of the same length whose templates and placeholders have no blanks."""
    code = _BRACED.sub(lambda match: match[0].translate(_KEPT), code)
    if "{{" in code:
        code = _CONTROL.sub(lambda match: " " * len(match[0]), code)
        code = _ACTION.sub(lambda match: match[0].translate(_KEPT), code)
    if "<" in code:
        code = _BRACKETED.sub(lambda match: match[0].translate(_KEPT), code)
    return code


def _is_escaped(code: str, position: int, start: int) -> bool:
    """Returns whether an odd number of backslashes is in front of a character."""
    count = 0
    while position - count > start and code[position - count - 1] == "\\":
        count += 1
    return count % 2 == 1


def _without_literal(match: re.Match[str]) -> str:
    """Returns what can be a variable in a part of a word."""
    return _ESCAPE.sub("", match[0]) if match[0].startswith('"') else ""


def _unescaped(match: re.Match[str]) -> str:
    return match[1] or ""


def _content(text: Text, written: str, token: str, offset: int) -> Text | None:
    """Returns what is in quotes, with its places; None if it is no script."""
    if " " not in token:
        return None
    parts: list[Part] = []
    position = 0
    for index, character in enumerate(token):
        source_index = written.find(character, position)
        if source_index < 0:
            return None
        if source_index > position or not parts:
            parts.append(Part(index, offset + source_index))
        position = source_index + 1
    return InnerText(text, token, parts)


def _line_end(code: str, position: int) -> int:
    """Returns the end of the line that has a position."""
    line_feed = code.find("\n", position)
    return len(code) if line_feed < 0 else line_feed


def expand(
    word: Word,
    variables: Mapping[str, str],
    arrays: Mapping[str, list[Word]] | None = None,
    parameters: Parameters | None = None,
) -> list[Word]:
    """Returns a word with the values of its variables: several words if it is not quoted.

    `unknown` of the result is the first variable without a value. A word that is an array is
    replaced by its elements, with their places.
    """
    if not word.unknown:
        return [word]
    match = _WHOLE_ARRAY.fullmatch(word.text)
    if match is not None and arrays is not None and match[1] in arrays:
        return arrays[match[1]]
    if parameters is not None:
        words = parameters.words_of(word)
        if words is not None:
            return words
    if "`" in word.unknown:
        return [Word(word.text, word.place, word.unknown, word.is_quoted)]
    missing: list[str] = []
    left = MAX_VALUE

    def value(match: re.Match[str]) -> str:
        nonlocal left
        name = match["name"] or match["braced"] or match["other"]
        variable_value: str | None = variables.get(name, match["default"])
        if parameters is not None:
            variable_value = parameters.text_of(name, variable_value)
        variable_value = _alternative(match, variable_value)
        if variable_value is not None and len(variable_value) <= left:
            left -= len(variable_value)
            return variable_value
        missing.append(match[0])
        return match[0]

    text = _VARIABLE.sub(value, word.text)
    action = _ACTION.search(text)
    unknown = missing[0] if missing else action[0] if action else ""
    if word.is_quoted or word.is_whole or unknown:
        return [Word(text, word.place, unknown, word.is_quoted)]
    # A value can contain variables whose own values are not known.
    return [Word(part, word.place, part if "$" in part else "") for part in text.split()]


def _alternative(match: re.Match[str], variable_value: str | None) -> str | None:
    """Returns the text of `${NAME:+text}` if the variable has a value, or the value."""
    if variable_value and match["present"] is not None:
        return match["present"]
    return variable_value
