"""`python -m app drift`: sends recorded requests to a live server and prints how the answers' shapes differ.

A shape is status, content type, keys, types of values, and the order of a stream's events.
Texts, numbers and ids differ between runs; clients rely on the shape.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from http.client import HTTPException
from itertools import islice, zip_longest
from typing import Any, TypeAlias

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
NAMES = frozenset(("object", "type", "role", "event"))
"""Fields with protocol constants as values; these values are compared."""
MOST_SHOWN = 160
"""Most characters of a shape in a printed line."""


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
        body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
        was = Seen(answer.status, _media_type(answer.header("content-type")), body)
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
        yield _told("status", str(recorded.status), str(live.status))
    elif recorded.content_type != live.content_type:
        yield _told("content type", recorded.content_type or "none", live.content_type or "none")
    elif recorded.content_type == "text/event-stream":
        pairs = zip_longest(_events(recorded.body), _events(live.body), fillvalue="the end")
        parts = ((number, was, came) for number, (was, came) in enumerate(pairs, 1) if was != came)
        yield from (_told(f"stream, part {number}", was, came) for number, was, came in islice(parts, 1))
    elif recorded.content_type.endswith("json"):
        was, came = _decoded(recorded.body), _decoded(live.body)
        if (was is NO_JSON) != (came is NO_JSON):
            yield "body: only one of them is JSON"
        elif was is not NO_JSON:
            yield from _compared("$", shape_of(was), shape_of(came))


def _events(body: bytes) -> list[str]:
    """Returns the shapes of a stream's events (WHATWG HTML 9.2), in order; equal neighbours are merged."""
    shapes: list[str] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = [line.partition(":") for line in block.decode(errors="replace").split("\n")]
        name = next((value.strip() for field, _, value in fields if field == "event"), "")
        data = "\n".join(value.removeprefix(" ") for field, _, value in fields if field == "data")
        value = _decoded(data.encode()) if data else NO_JSON
        shape = f"{name} {data if value is NO_JSON else _text(shape_of(value))}".strip()
        if shape and shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes


NO_JSON = object()
"""Marks a body that is not JSON."""
Shape: TypeAlias = "str | dict[str, Shape] | list[Shape]"
"""Shape of a JSON value: the kind of a scalar, or the shapes of members or items."""


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_JSON


def shape_of(value: object, key: str = "") -> Shape:
    """Returns keys and kinds of a JSON value. Items of equal shape appear once, and so do members under
    token ids.
    """
    if isinstance(value, dict):
        if value and all(name.isdecimal() for name in value):
            return {"*": _distinct(value.values())}
        return {name: shape_of(item, name) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return _distinct(value)
    if isinstance(value, str):
        return repr(value) if key in NAMES else "string"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "bool"
    return "number"


def _distinct(values: Iterable[object]) -> list[Shape]:
    shapes: list[Shape] = []
    for shape in map(shape_of, values):
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def _text(shape: Shape) -> str:
    if isinstance(shape, dict):
        return "{" + ", ".join(f"{name}: {_text(item)}" for name, item in shape.items()) + "}"
    return "[" + " | ".join(map(_text, shape)) + "]" if isinstance(shape, list) else shape


def _compared(path: str, was: Shape, came: Shape) -> Iterator[str]:
    """Yields the differences of two shapes; of lists, only the first items are compared."""
    if isinstance(was, dict) and isinstance(came, dict) and "*" not in (*was, *came):
        for name in sorted(was.keys() | came.keys()):
            if name not in came:
                yield f"{path}.{name}: was recorded, and did not come"
            elif name not in was:
                yield f"{path}.{name}: came, and was not recorded"
            else:
                yield from _compared(f"{path}.{name}", was[name], came[name])
    elif isinstance(was, list) and isinstance(came, list) and was and came:
        yield from _compared(f"{path}[0]", was[0], came[0])
    elif was != came:
        yield _told(path, _text(was), _text(came))


def _told(path: str, was: str, came: str) -> str:
    was, came = (text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..." for text in (was, came))
    return f"{path}: {was} was recorded, {came} came"
