"""Output of commands without the control characters of strangers.

Commands print parts of files and answers that they do not trust: a name of a model may clear the
terminal, and a line of a script may be a command of the CI that shows it. `printable_output` is in
force for all commands, so that their code prints as usual.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, TextIO

_CONTROLS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tabs and line ends, marks of the direction of text, and surrogates."""
_LINE_ENDS = re.compile("[\t\n]")
_CI_COMMAND = re.compile(r"^([^\S\n]*)(::|##(?=\[|vso\[))", re.MULTILINE)
"""Begin of a line that GitHub's or Azure's runners obey, wherever it is printed."""


def printable(text: str) -> str:
    r"""Returns a text with escapes such as \u001b, which JSON has, too, for control characters."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(_escape, text)


def one_line(text: object) -> str:
    """Returns a text of a stranger as a part of one line."""
    return _LINE_ENDS.sub(_escape, printable(str(text)))


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


class PrintableStream:
    """Writes text to a stream, with control characters and commands of a CI escaped."""

    def __init__(self, stream: TextIO) -> None:
        self.trusted = stream
        """The stream for text of our own, such as progress bars and commands for a CI."""
        self._is_line_blank = True

    def write(self, text: str) -> int:
        """Writes a text, and returns its length."""
        safe = printable(text)
        if "::" in safe or "##" in safe:
            safe = _CI_COMMAND.sub(self._escape_command, safe)
        last_line = text[text.rfind("\n") + 1 :]
        is_continued = len(last_line) == len(text)
        self._is_line_blank = not last_line.strip() and (self._is_line_blank or not is_continued)
        self.trusted.write(safe)
        return len(text)

    def _escape_command(self, match: re.Match[str]) -> str:
        if match.start() == 0 and not self._is_line_blank:
            return match[0]
        return f"{match[1]}\\u{ord(match[2][0]):04x}{match[2][1:]}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trusted, name)


def trusted_stream(stream: TextIO) -> TextIO:
    """Returns the stream that writes the text of our own as it is."""
    trusted: TextIO = getattr(stream, "trusted", stream)
    return trusted


@contextmanager
def printable_output() -> Iterator[None]:
    """Makes `sys.stdout` and `sys.stderr` escape what they print, until the block ends."""
    stdout: Any = PrintableStream(trusted_stream(sys.stdout))
    stderr: Any = PrintableStream(trusted_stream(sys.stderr))
    with redirect_stdout(stdout), redirect_stderr(stderr):
        yield
