"""Transcripts of `curl -v`: commands with the bodies of requests, and the answers below them.

A transcript has lines that begin with `>` (sent headers), `<` (received headers) and `*` (remarks),
and the body of the answer. curl does not print the body of a request, so the command has to be in
the transcript, as a terminal shows it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from workbench.imports.cassette import import_interactions
from workbench.imports.curl_command import CurlCommand, read_command
from workbench.imports.imported_script import (
    ImportedScript,
    ImportFormatError,
    Json,
)
from workbench.imports.records import interaction

STATUS_LINE = re.compile(r"< HTTP/[\d.]+ (\d{3})\b")
ANY_STATUS_LINE = re.compile(rf"(?m)^{STATUS_LINE.pattern}")
SENT_LINE = re.compile(r"> ([A-Z]+) (\S+) HTTP/[\d.]+")
HEADER_LINE = re.compile(r"< ([^\s:]+):\s*(.*)")
COMMAND_START = re.compile(r"(?:[^\n'\"{}<>]{0,100}[$#%>] )?(?=curl(?:\.exe)?\s)")
"""Start of a command, perhaps after the prompt of a shell."""
LAST_REMARK = re.compile(r"\* (?:Connection #\d+ to host|Closing connection|Excess found)")
"""Start of a remark that may follow a body without a line end."""
NOISE = re.compile(r"\* |[{}] \[\d+ bytes data\]|  % Total|\s+Dload")
METER = re.compile(r"[\s\d.:kMG-]{50,}:[\d-]{2}[\s\d.kMG]+")
"""The meter of the progress, which may be before a body in the same line."""
INTERIM = "1"
"""First digit of statuses that another one follows."""
NO_BODY = (
    "the transcript has no body of the request: curl -v does not print it, so copy the command"
    " with its -d into the file, too"
)


@dataclass
class _Answer:
    """An answer as far as its lines have come, and its request.

    Attributes:
        command: The command; None if only its output is in the transcript.
        method: Method in the sent headers; empty before them, and without them.
        target: Path in the sent headers.
        status: Empty before the status line.
        is_body: The headers have ended.
        is_over: The body has ended, too.
    """

    command: CurlCommand | None = None
    method: str = ""
    target: str = ""
    status: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: list[str] = field(default_factory=list)
    is_body: bool = False
    is_over: bool = False

    @property
    def is_final(self) -> bool:
        """True if the request has its answer."""
        return bool(self.status) and not self.status.startswith(INTERIM)


def is_transcript(text: str) -> bool:
    """Returns whether a text has the headers of an answer, as `curl -v` prints them."""
    return ANY_STATUS_LINE.search(text) is not None


def import_transcript(text: str, script: ImportedScript) -> Json:
    """Adds a rule for each answer, and returns the schemas of the tools by name."""
    interactions: list[object] = []
    for answer in _answers_in(text):
        try:
            interactions.append(_interaction(answer))
        except ImportFormatError as error:
            interactions.append(error)
    return import_interactions(interactions, script, noun="answer")


def _interaction(answer: _Answer) -> Json:
    """Returns the interaction of a cassette.

    Raises:
        ImportFormatError: the transcript does not have the body of the request.
    """
    command = answer.command or CurlCommand()
    method = answer.method or command.method
    if command.body_file:
        raise ImportFormatError(f"the body of the request is in {command.body_file[:100]}")
    if method == "POST" and command.body is None:
        raise ImportFormatError(NO_BODY)
    return interaction(
        command.url or answer.target,
        command.body,
        "\n".join(answer.body).strip(),
        status=answer.status,
        method=method,
        headers=answer.headers,
    )


def _answers_in(text: str) -> Iterator[_Answer]:
    """Yields each answer that has a status."""
    answer = _Answer()
    position = 0
    while position < len(text):
        start = COMMAND_START.match(text, position)
        if start is not None:
            if answer.is_final:
                yield answer
            command, position = read_command(text, start.end())
            answer = _Answer(command)
            continue
        end = text.find("\n", position)
        if end < 0:
            end = len(text)
        line = text[position:end].removesuffix("\r")
        position = end + 1
        sent = SENT_LINE.match(line)
        if sent is not None:
            if answer.is_final:
                yield answer
            answer = _Answer(answer.command, method=sent[1], target=sent[2])
        else:
            answer = _with_line(answer, line)
    if answer.is_final:
        yield answer


def _with_line(answer: _Answer, line: str) -> _Answer:
    """Returns the answer with the next line, which is a header, a remark, or part of the body."""
    status = STATUS_LINE.match(line)
    if status is not None:
        return replace(answer, status=status[1], headers={}, body=[], is_body=False, is_over=False)
    if answer.is_over or not answer.status:
        return answer
    if not answer.is_body:
        header = HEADER_LINE.match(line)
        if header is not None:
            answer.headers[header[1]] = header[2]
        answer.is_body = line.rstrip() == "<"
        return answer
    meter = METER.match(line)
    if meter is not None:
        line = line[meter.end() :]
    remark = LAST_REMARK.search(line)
    if remark is not None:
        line = line[: remark.start()]
        answer.is_over = True
    if not NOISE.match(line):
        answer.body.append(line)
    return answer
