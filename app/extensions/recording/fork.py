"""`understudy fork`: the first turns of a recorded session, to be continued in another way."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from app.core.server.http.event_stream import EventReader, ServerEvent
from app.extensions.recording.conversation import FAMILIES, position_of, turns_of
from app.extensions.recording.exchange import (
    FORMAT,
    VERSION,
    Exchange,
    Header,
    RecordedAnswer,
    RecordedChunk,
    bytes_of,
    create_private,
    data_of,
    line_of,
)
from app.extensions.recording.lines import recorded
from app.extensions.recording.request_form import json_object
from config import ConfigError
from config.declaration import COMMAND
from config.flags import FlagParser

DESCRIPTION = """\
Write a recording with the first replies of each conversation in another recording. A server that
replays it gets the next replies from a script, or from a real model (docs/coding-agents.md).
"""
KEPT_HEADERS = ("content-type", "user-agent")


def run(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        ConfigError: the recording cannot be read, or the new one cannot be written.
    """
    flags = FlagParser(prog=f"{COMMAND} fork", description=DESCRIPTION, allow_abbrev=False)
    flags.examples = (f"{COMMAND} fork session.jsonl --turns 1 --out fork.jsonl",)
    flags.add_argument("file", metavar="FILE", help="a recording")
    flags.add_argument(
        "--turns", type=_turns, metavar="N", help="number of replies of each conversation [all]"
    )
    flags.add_argument(
        "--without-prompts",
        action="store_true",
        help="leave out the texts of requests, which only replay-by turn can then answer",
    )
    flags.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="a new file for the recording"
    )
    options = flags.parse_args(argv)
    lines = [line_of(Header(FORMAT, VERSION))]
    total = 0
    for exchange in _exchanges(options.file):
        total += 1
        body = json_object(bytes_of(exchange.request.body))
        path = exchange.request.target.partition("?")[0]
        position = None
        if body is not None:
            position = position_of(path, body)
        if position is None or body is None:
            continue
        if options.turns is not None and position.reply_count >= options.turns:
            continue
        if options.without_prompts:
            exchange = _without_prompts(exchange, path, body)
        try:
            lines.append(line_of(exchange))
        except ValueError as error:
            raise ConfigError(f"{options.out} cannot be written: {error}") from None
    if len(lines) == 1:
        raise ConfigError(f"{options.file} contains no request that is part of a conversation")
    try:
        with open(options.out, "xb", opener=create_private) as file:
            file.writelines(lines)
    except OSError as error:
        raise ConfigError(f"{options.out} cannot be written: {error.strerror or error}") from None
    print(f"{options.out}: {len(lines) - 1} of {total} exchanges")
    return 0


def _turns(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, got {text[:20]!r}")
    return int(text)


def _exchanges(path: str) -> Iterator[Exchange]:
    for _, exchange in recorded(path):
        yield exchange


def _without_prompts(exchange: Exchange, path: str, body: dict[str, Any]) -> Exchange:
    """Returns an exchange with a chat's request, whose messages and tools only have their names."""
    messages: list[dict[str, str]] = []
    for turn in turns_of(FAMILIES[path], body):
        messages.append({"role": str(turn.get("role")), "content": ""})
    shortened: dict[str, Any] = {"model": body.get("model"), "stream": body.get("stream") is True}
    if body.get("tools"):
        shortened["tools"] = _tool_names(body["tools"])
    shortened["input" if "input" in body else "messages"] = messages
    request = msgspec.structs.replace(
        exchange.request,
        headers=[pair for pair in exchange.request.headers if pair[0].lower() in KEPT_HEADERS],
        body=data_of(msgspec.json.encode(shortened)),
    )
    return msgspec.structs.replace(exchange, request=request, answer=_without_echo(exchange.answer))


def _without_echo(answer: RecordedAnswer) -> RecordedAnswer:
    """Returns an answer without the instructions and tools that the Responses API repeats.

    Each chunk of the new answer is an event, or the whole answer.
    """
    chunks: list[RecordedChunk] = []
    reader = EventReader()
    for chunk in answer.chunks:
        for event in reader.feed(bytes_of(chunk.data)):
            chunks.append(RecordedChunk(chunk.at_s, data_of(_shortened_event(event))))
    body = reader.remainder
    if body:
        ended = next(reader.feed(b"\n\n"))
        if ended.data:
            body = _shortened_event(ended)
        else:
            body = _shortened(body) or body
        chunks.append(RecordedChunk(answer.end_s, data_of(body)))
    headers = [pair for pair in answer.headers if pair[0].lower() != "content-length"]
    return msgspec.structs.replace(answer, chunks=chunks, headers=headers)


def _shortened_event(event: ServerEvent) -> bytes:
    data = _shortened(event.data)
    if data is None:
        return event.raw
    head = b""
    if event.type:
        head = b"event: %b\n" % event.type
    return b"%bdata: %b\n\n" % (head, data)


def _shortened(data: bytes) -> bytes | None:
    """Returns an answer of the Responses API, or an event with it, without instructions and tools.

    Returns None for other data.
    """
    fields = json_object(data)
    if fields is None:
        return None
    response = fields.get("response", fields)
    if not isinstance(response, dict) or response.get("object") != "response":
        return None
    response |= {"instructions": None, "tools": []}
    return msgspec.json.encode(fields)


def _tool_names(tools: object) -> list[dict[str, str]]:
    """Returns the tools of a request with their names only; a malformed one has no name."""
    names: list[dict[str, str]] = []
    for tool in tools if isinstance(tools, list) else [tools]:
        name: object = None
        if isinstance(tool, dict):
            function = tool.get("function")
            source = function if isinstance(function, dict) else tool
            name = source.get("name") or tool.get("type")
        names.append({"name": str(name or "")})
    return names
