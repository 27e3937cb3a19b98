"""Splits shell code into commands whose words know their places.

Words have the rules of Python's `shlex`, which gives no places and is slow for long words. Control
flow is not interpreted: each line is read as if it ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from app.extensions.check.sources import Word
from app.extensions.check.text import InnerText, Part, Text

_CONTINUATION = re.compile(r"\\\r?\n")
_COMMENT_LINE = re.compile(r"[ \t]*#")
_COMMENT = re.compile(r"[ \t]#")
_VARIABLE = re.compile(
    r"\$(?:(?P<name>\w+)|\{(?P<braced>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}$]*))?\}"
    r"|(?P<other>[({@*#?!$]))"
)
_BRACED = re.compile(r"\$\{[^{}\n]{1,1000}\}")
_CONTROL = re.compile(
    r"\{\{-?\s*else\s*-?\}\}[^\n]{0,1000}?\{\{-?\s*end\s*-?\}\}"
    r"|\{\{-?\s*(?:if|else|end|range|with)\b[^{}\n]{0,1000}\}\}"
)
"""Of a condition in a Go template, the first branch counts."""
_ACTION = re.compile(r"\{\{[^{}\n]{1,1000}\}\}")
"""A value of a Go template, such as `{{ .Spec.Model.Name }}`; it may be anything."""
_KEPT = str.maketrans(" \t\"'", "\ue000\ue001\ue002\ue003")
"""Blanks and quotation marks in `${NAME:+--option "$NAME"}`, which do not end a word."""
_RESTORED = {kept: character for character, kept in _KEPT.items()}
_WHOLE_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_SINGLE_QUOTED = re.compile(r"'[^']*'")
_PIECE = re.compile(
    r"(?P<plain>[^ \t\r\n\\'\"]+)|'(?P<single>[^']*)'|\\(?P<escaped>.)|(?P<blanks>[ \t\r\n]+)"
    r'|"(?P<double>[^"\\]*(?:\\.[^"\\]*)*)"',
    re.DOTALL,
)
"""A part of a word, or blanks between words."""
_ESCAPED = re.compile(r'\\(["\\])')
_SEPARATORS = frozenset(("&&", "||", ";", "|", "&", "then", "do", "else"))
_INTERPRETERS = frozenset(("python", "python3", "node", "perl", "ruby", "jq", "psql", "mysql"))
"""Programs whose here-documents are not shell code."""
ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)", re.DOTALL)
"""The first word of an array: its name, `+` for more elements, and the first element."""
MAX_DOCUMENTS = 3
"""Here-documents within one another."""
MAX_JOINED_LINES = 500
"""Most lines of one quoted text."""
MAX_REREAD = 1 << 20
"""Characters of quoted texts that are read again with each further line; then a line ends them."""
MAX_VALUE = 16 << 10
"""Characters of a word with the values of its variables; a longer one is not known."""


def split_commands(
    text: Text, start: int = 0, end: int | None = None, depth: int = 0
) -> Iterator[list[Word]]:
    """Yields the commands in a part of a text; variables are not replaced.

    `Word.unknown` has the written word if it contains variables. The commands of a here-document
    follow those of its line; `depth` is the number of documents around the part.
    """
    end = len(text.text) if end is None else end
    # Both characters of a continued line become blanks, so that offsets stay the same.
    code = _CONTINUATION.sub(lambda match: " " * len(match[0]), text.text[start:end])
    code = _BRACED.sub(lambda match: match[0].translate(_KEPT), code)
    if "{{" in code:
        code = _CONTROL.sub(lambda match: " " * len(match[0]), code)
        code = _ACTION.sub(lambda match: match[0].translate(_KEPT), code)
    offset = start
    pending = ""
    held: list[Word] = []
    open_arrays = 0
    joined = 0
    reread = 0
    lines = iter(code.splitlines(keepends=True))
    for line in lines:
        if not pending and _COMMENT_LINE.match(line):
            offset += len(line)
            continue
        pending += line
        joined += 1
        words = _words_or_none(text, pending, offset)
        if words is None:  # a quoted text goes on in the next line
            reread += len(pending)
            if joined < MAX_JOINED_LINES and reread < MAX_REREAD:
                continue
            words = []
        offset += len(pending)
        pending = ""
        held += words
        open_arrays = _open_arrays(words, open_arrays)
        if open_arrays and joined < MAX_JOINED_LINES:
            continue
        yield from _commands(held)
        delimiter = _delimiter(held)
        if delimiter and depth < MAX_DOCUMENTS:
            size, last = _document(lines, delimiter)
            if _INTERPRETERS.isdisjoint(word.text.rpartition("/")[2] for word in held):
                yield from split_commands(text, offset, offset + size, depth + 1)
            offset += size + last
        held = []
        open_arrays = joined = 0
    yield from _commands(held)


def _open_arrays(words: list[Word], count: int) -> int:
    """Returns the brackets of arrays that are still open behind the words."""
    for word in words:
        if not word.is_quoted and (count or ARRAY.match(word.text)):
            count = max(0, count + word.text.count("(") - word.text.count(")"))
    return count


def _delimiter(words: list[Word]) -> str:
    """Returns the last line of the here-document that begins behind the words; empty for none."""
    for index, word in enumerate(words):
        if word.text.startswith("<<") and not word.text.startswith("<<<") and not word.is_quoted:
            following = words[index + 1].text if index + 1 < len(words) else ""
            return word.text[2:].lstrip("-") or following
    return ""


def _document(lines: Iterator[str], delimiter: str) -> tuple[int, int]:
    """Takes the lines of a here-document; returns their length, and that of its last line."""
    size = 0
    for line in lines:
        if line.strip() == delimiter:
            return size, len(line)
        size += len(line)
    return size, 0


def _words_or_none(text: Text, line: str, offset: int) -> list[Word] | None:
    """Returns the words of a line; None if a quotation has no end. Comments may have quotes."""
    for code in (line, _COMMENT.split(line)[0]):
        with suppress(ValueError):
            return list(_words(text, code, offset))
    return None


def _words(text: Text, line: str, offset: int) -> Iterator[Word]:
    for start, end, token in _tokens(line):
        written = line[start:end].translate(_RESTORED)
        token = token.translate(_RESTORED)
        if written.startswith("#"):
            return
        place = text.place(offset + start)
        is_quoted = written.startswith(('"', "'"))
        has_variables = "$" in _SINGLE_QUOTED.sub("", written) or "`" in written
        unknown = written if has_variables or _ACTION.search(written) else ""
        content = _content(text, written, token, offset + start) if is_quoted else None
        if token.endswith(";") and written.endswith(";"):
            if len(token) > 1:
                yield Word(token[:-1], place, unknown, is_quoted)
            yield Word(";", place)
        else:
            yield Word(token, place, unknown, is_quoted, content)


def _tokens(line: str) -> Iterator[tuple[int, int, str]]:
    """Yields begin, end, and value of each word.

    Raises:
        ValueError: A quotation has no end.
    """
    start = end = 0
    pieces: list[str] = []
    while end < len(line):
        match = _PIECE.match(line, end)
        if match is None:
            raise ValueError
        kind = match.lastgroup
        if kind == "blanks":
            if pieces:
                yield start, end, "".join(pieces)
                pieces = []
            start = match.end()
        elif kind == "double":
            pieces.append(_ESCAPED.sub(r"\1", match["double"]))
        else:
            pieces.append(match[kind or 0])
        end = match.end()
    if pieces:
        yield start, end, "".join(pieces)


def _content(text: Text, written: str, token: str, offset: int) -> Text | None:
    """Returns what is in quotes, with its places; None if it is no script."""
    if " " not in token:
        return None
    parts: list[Part] = []
    position = 0
    for index, character in enumerate(token):
        found = written.find(character, position)
        if found < 0:
            return None
        if found > position or not parts:
            parts.append(Part(index, offset + found))
        position = found + 1
    return InnerText(text, token, parts)


def _commands(words: list[Word]) -> Iterator[list[Word]]:
    command: list[Word] = []
    for word in words:
        if word.text in _SEPARATORS:
            if command:
                yield command
            command = []
        else:
            command.append(word)
    if command:
        yield command


def expand(
    word: Word, variables: Mapping[str, str], arrays: Mapping[str, list[Word]] | None = None
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
    if "`" in word.unknown:
        return [Word(word.text, word.place, word.unknown, word.is_quoted)]
    missing: list[str] = []
    left = MAX_VALUE

    def value(match: re.Match[str]) -> str:
        nonlocal left
        name = match["name"] or match["braced"]
        known = variables.get(name, match["default"])
        if known is not None and len(known) <= left:
            left -= len(known)
            return known
        missing.append(match[0])
        return match[0]

    text = _VARIABLE.sub(value, word.text)
    action = _ACTION.search(text)
    unknown = missing[0] if missing else action[0] if action else ""
    if word.is_quoted or unknown:
        return [Word(text, word.place, unknown, word.is_quoted)]
    return [Word(part, word.place) for part in text.split()]
