"""`python -m app drift`: sends recorded requests to a live server and prints how the answers' shapes differ.

A shape is status, content type, keys, types of values, and the order of a stream's events.
Texts, numbers and ids differ between runs; clients rely on the shape.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPException
from itertools import zip_longest

import msgspec
from msgspec import Struct

from app.serving.http.client import Target
from app.serving.http.relay import NOT_FORWARDED, READ_TIMEOUT_S
from app.serving.middleware.masking import MASK
from app.serving.recording.exchange import (
    MOST_LINE_BYTES,
    Exchange,
    RecordingError,
    bytes_of,
)
from app.serving.recording.library import recorded
from config.flags import FlagParser
from config.installation import COMMAND

ABOUT = """\
Send every request of a recording to a live server, one after the other, and tell where its answers depart
from the recorded ones in shape: status, kind of content, keys, kinds of values, order of events
(docs/recording.md). Exit status 1 when some do.
"""
MOST_TOLD = 5
"""Most differences printed per exchange."""
CONSTANTS = ("object", "type", "role")
"""Fields with protocol constants as values; these values are compared."""
KINDS: dict[type, str] = {
    **{str: "string", int: "number", float: "number", bool: "bool", type(None): "null"},
    **{dict: "empty object", list: "empty list"},
}
MOST_SHOWN = 160
"""Most characters of a shape in a printed line."""
NO_JSON = object()
"""Marks a body that is not JSON."""


def run(argv: Sequence[str]) -> int:
    try:
        return _check(_parser().parse_args(argv))
    except KeyboardInterrupt:
        return 1


def _parser() -> argparse.ArgumentParser:
    flags = FlagParser(prog=f"{COMMAND} drift", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("file", metavar="FILE", help="a recording of record --proxy")
    add("--target", required=True, metavar="URL", help="the live server, such as http://host:8000")
    add("--api-key", metavar="KEY", help="of the server; recorded keys are masked")
    add("--model", metavar="NAME", help="to ask for, instead of the recorded one")
    return flags


def _check(given: argparse.Namespace) -> int:
    target = Target.of(given.target)
    logging.basicConfig(format="%(levelname)s: %(message)s")
    agree = count = 0
    for number, exchange in recorded(given.file):
        count += 1
        request, answer = exchange.request, exchange.answer
        was = Seen(answer.status, _media_type(answer.header("content-type")), answer.body())
        found = list(differences(was, asked(target, exchange, given.api_key, given.model)))
        agree += not found
        if found:
            print(f"line {number}: {request.method} {request.target}: {len(found)} differences")
            print(*(f"    {line}" for line in found[:MOST_TOLD]), sep="\n", flush=True)
    print(f"{agree} of {count} exchanges agree")
    return 0 if agree == count else 1


def asked(target: Target, exchange: Exchange, key: str | None, model: str | None) -> Seen:
    """Sends a recorded request to `target` and returns the answer. RecordingError: no answer."""
    request = exchange.request
    headers = {name: value for name, value in request.headers if value != MASK and name not in NOT_FORWARDED}
    headers.pop("accept-encoding", None)
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = bytes_of(request.body)
    fields = _decoded(body) if model else None
    if isinstance(fields, dict) and "model" in fields:
        body = msgspec.json.encode({**fields, "model": model})
    with closing(target.connection(READ_TIMEOUT_S)) as connection:
        try:
            connection.request(request.method, target.prefix + request.target, body or None, headers)
            response = connection.getresponse()
            content = response.read(MOST_LINE_BYTES)
        except (OSError, HTTPException) as error:
            raise RecordingError(f"{target.url}: {error!r}") from None
        return Seen(response.status, _media_type(response.getheader("content-type") or ""), content)


class Seen(Struct, frozen=True):
    """Fields of an answer that are compared; `content_type` has no parameters."""

    status: int
    content_type: str
    body: bytes


def _media_type(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def differences(recorded: Seen, live: Seen) -> Iterator[str]:
    """Yields a line for each difference in shape between the recorded and the `live` answer."""
    if recorded.status != live.status:
        yield f"status: {recorded.status} was recorded, {live.status} came"
    elif recorded.content_type != live.content_type:
        yield f"content type: {recorded.content_type} was recorded, {live.content_type} came"
    elif recorded.content_type == "text/event-stream":
        pairs = zip_longest(_events(recorded.body), _events(live.body), fillvalue="the end")
        for number, (was, came) in enumerate(pairs, 1):
            if was != came:
                yield f"stream, part {number}: {was[:MOST_SHOWN]} was recorded, {came[:MOST_SHOWN]} came"
                return
    elif recorded.content_type.endswith("json"):
        shapes = shape_of(_decoded(recorded.body)), shape_of(_decoded(live.body))
        yield from (f"{line}: was recorded, and did not come" for line in sorted(shapes[0] - shapes[1]))
        yield from (f"{line}: came, and was not recorded" for line in sorted(shapes[1] - shapes[0]))


def _events(body: bytes) -> list[str]:
    """Returns the shapes of a stream's events (WHATWG HTML 9.2), in order; equal neighbours are merged."""
    shapes: list[str] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = [line.partition(":") for line in block.decode(errors="replace").split("\n")]
        name = next((value.strip() for field, _, value in fields if field == "event"), "")
        data = "\n".join(value.removeprefix(" ") for field, _, value in fields if field == "data")
        value = _decoded(data.encode())
        shape = f"{name} {data if value is NO_JSON else ', '.join(sorted(shape_of(value)))}".strip()
        if shape and shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes


def _decoded(body: bytes) -> object:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_JSON
    return value


def shape_of(value: object, path: str = "$") -> set[str]:
    """Returns each path of a JSON value with its kind. Items of a list share a path, members under token ids,
    too.
    """
    if isinstance(value, dict) and value:
        is_by_id = all(map(str.isdecimal, value))
        inner = ((item, f"{path}.{'*' if is_by_id else name}") for name, item in value.items())
    elif isinstance(value, list) and value:
        inner = ((item, f"{path}[]") for item in value)
    else:
        is_constant = isinstance(value, str) and path.rpartition(".")[2] in CONSTANTS
        return {f"{path}: {repr(value) if is_constant else KINDS.get(type(value), 'no JSON')}"}
    return {line for item, its_path in inner for line in shape_of(item, its_path)}
