"""Reads a command of curl in the text of a terminal: `read_command`.

Words are read as a POSIX shell reads them. Line ends may also be escaped as in shells of Windows.
Variables are not expanded.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

PIECE = re.compile(
    r"""
    (?P<blank> [ \t\r]+ )
    | [\\^`] \r? \n
    | '(?P<single> [^']*+ )'
    | \$'(?P<escaped> (?: \\. | [^'\\]++ )*+ )'
    | "(?P<double> (?: \\. | [^"\\]++ )*+ )"
    | \\(?P<character> . )
    | (?P<plain> [^\s'"\\$^`]+ | [$^`] )
    """,
    re.DOTALL | re.VERBOSE,
)
"""A piece of a word, or a blank between words. Nothing matches at the end of the command.

Possessive quantifiers keep no state for each of the millions of characters of a body.
"""
DOUBLE_ESCAPE = re.compile(r"\\([\"\\$`])|\\\r?\n")
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
ESCAPED_CHARACTERS = {"n": "\n", "r": "\r", "t": "\t"}
HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
ENDS = ("<<", "|", "||", "&", "&&", ";", ">", ">>", "2>", "2>&1", "<", "<<<")
"""Words that end the words of curl."""
BODY_FLAGS = ("-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
METHOD_FLAGS = ("-X", "--request")
OTHER_FLAGS = (
    *("-H", "--header", "-o", "--output", "-u", "--user", "-A", "--user-agent", "-w"),
    *("--write-out", "-m", "--max-time", "--connect-timeout", "--cacert", "--cert", "-E", "--key"),
    *("--retry", "-e", "--referer", "-b", "--cookie", "-c", "--cookie-jar", "-x", "--proxy"),
    *("--resolve", "--unix-socket", "-F", "--form", "-T", "--upload-file", "--oauth2-bearer"),
)
"""Flags with a value that an import does not need."""
SWITCHES = "aBfgGiIjklLnNOpqRsSvV#0123456"
"""Short flags without a value, which can stand before one with a value: `-sSd`."""


class CurlCommand(NamedTuple):
    """A command, as far as an import needs it.

    Attributes:
        url: Empty if the command has none.
        method: The method that the command implies.
        body: The body; None without one, and if a file has it.
        body_file: The file that has the body.
    """

    url: str = ""
    method: str = "GET"
    body: str | None = None
    body_file: str = ""


def read_command(text: str, start: int) -> tuple[CurlCommand, int]:
    """Returns the command that begins at `start`, and the position of the line behind it."""
    words, end = _words_at(text, start)
    line_end = text.find("\n", end)
    if line_end < 0:
        line_end = len(text)
    position = line_end + 1
    document = None
    here = HERE_DOCUMENT.search(text, start, line_end)
    if here is not None:
        # As in a shell, a document without its last line has all of the text: a second search
        # for each of many such commands would take hours.
        last_line = re.compile(rf"(?m)^\t*{here[2]}\r?$").search(text, position)
        document_end = last_line.start() if last_line is not None else len(text)
        document = text[position:document_end]
        position = last_line.end() + 1 if last_line is not None else len(text)
    return _command_of(words, document), position


def _words_at(text: str, start: int) -> tuple[list[str], int]:
    """Returns the words of a command, and its end."""
    words: list[str] = []
    word: list[str] | None = None
    position = start
    while True:
        piece = PIECE.match(text, position)
        if piece is None:
            break
        position = piece.end()
        if piece["blank"] is not None:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        content = _content_of(piece)
        if content is not None:
            if word is None:
                word = []
            word.append(content)
    if word is not None:
        words.append("".join(word))
    return words, position


def _content_of(piece: re.Match[str]) -> str | None:
    """Returns the text of a piece; None for an escaped line end."""
    kind = piece.lastgroup
    if kind is None:
        return None
    content: str = piece[kind]
    if kind == "double":
        return DOUBLE_ESCAPE.sub(_escaped_in_double, content)
    if kind == "escaped":
        return ESCAPE.sub(_escaped, content)
    return content


def _escaped_in_double(match: re.Match[str]) -> str:
    return match[1] or ""


def _escaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    if code:
        return chr(int(code, 16))
    return ESCAPED_CHARACTERS.get(match[3], match[3])


def _command_of(words: list[str], document: str | None) -> CurlCommand:
    """Returns the command with these words; `document` is the here-document of its line."""
    url = ""
    method = ""
    bodies: list[str] = []
    body_file = ""
    for flag, value in _flags_of(words[1:]):
        if flag in METHOD_FLAGS:
            method = value
        elif flag in ("", "--url"):
            url = url or value
        elif value in ("@-", "@/dev/stdin") and document is not None:
            bodies.append(document)
        elif value.startswith("@") and flag != "--data-raw":
            body_file = value[1:]
        else:
            bodies.append(value)
    body = "&".join(bodies) if bodies else None
    if not method:
        method = "POST" if bodies or body_file else "GET"
    return CurlCommand(url, method, body, body_file)


def _flags_of(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yields each flag that counts with its value, and each other word with an empty flag."""
    remaining = iter(words)
    for word in remaining:
        if word in ENDS or HERE_DOCUMENT.match(word):
            return
        if not word.startswith("-") or word == "-":
            yield "", word
            continue
        flag, value = _split(word)
        if flag in (*BODY_FLAGS, *METHOD_FLAGS, "--url"):
            yield flag, next(remaining, "") if value is None else value
        elif flag in OTHER_FLAGS and value is None:
            next(remaining, None)


def _split(word: str) -> tuple[str, str | None]:
    """Returns the flag of a word, and the value that is glued to a short flag; None without one."""
    if word.startswith("--"):
        return word, None
    letters = word[1:].lstrip(SWITCHES)
    if not letters:
        return word, None
    return f"-{letters[0]}", letters[1:] or None
