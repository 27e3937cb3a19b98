"""`python -m app drift`: sends recorded requests to a live server and prints how the answers' shapes differ.

A shape is status, content type, keys, types of values, and the order of a stream's events.
Texts, numbers and ids differ between runs; clients rely on the shape.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from itertools import zip_longest
from typing import Any

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
from config.flags import Parser
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
    flags = Parser(prog=f"{COMMAND} drift", description=ABOUT, allow_abbrev=False)
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
        found = list(differences(_seen(exchange), asked(target, exchange, given.api_key, given.model)))
        agree += not found
        if found:
            request = exchange.request
            print(f"line {number}: {request.method} {request.target}: {len(found)} differences")
            print(*(f"    {line}" for line in found[:MOST_TOLD]), sep="\n", flush=True)
    print(f"{agree} of {count} exchanges agree")
    return 0 if agree == count else 1


def _seen(exchange: Exchange) -> Seen:
    answer = exchange.answer
    body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
    return Seen(answer.status, content_type_of(answer.header("content-type")), body)


def asked(target: Target, exchange: Exchange, key: str | None, model: str | None) -> Seen:
    """Sends a recorded request to `target` and returns the answer. RecordingError: no answer."""
    request = exchange.request
    headers = {name: value for name, value in request.headers if value != MASK and name not in NOT_FORWARDED}
    headers.pop("accept-encoding", None)
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = _with_model(bytes_of(request.body), model)
    with closing(target.connection(READ_TIMEOUT_S)) as connection:
        try:
            connection.request(request.method, target.prefix + request.target, body or None, headers)
            response = connection.getresponse()
            content = response.read(MOST_LINE_BYTES)
        except (OSError, HTTPException) as error:
            raise RecordingError(f"{target.url}: {error!r}") from None
        return Seen(response.status, content_type_of(response.getheader("content-type") or ""), content)


def _with_model(body: bytes, model: str | None) -> bytes:
    try:
        fields: Any = msgspec.json.decode(body) if model else None
    except msgspec.MsgspecError:
        return body
    if isinstance(fields, dict) and "model" in fields:
        return msgspec.json.encode({**fields, "model": model})
    return body


class Seen(Struct, frozen=True):
    """Fields of an answer that are compared; `content_type` has no parameters."""

    status: int
    content_type: str
    body: bytes


def content_type_of(header: str) -> str:
    return header.partition(";")[0].strip().lower()


def differences(recorded: Seen, live: Seen) -> Iterator[str]:
    """Yields a line for each difference in shape between the recorded and the `live` answer."""
    if recorded.status != live.status:
        yield _told("status", str(recorded.status), str(live.status))
        return
    if recorded.content_type != live.content_type:
        yield _told("content type", recorded.content_type or "none", live.content_type or "none")
        return
    if recorded.content_type == "text/event-stream":
        yield from _of_streams(recorded.body, live.body)
    elif recorded.content_type.endswith("json"):
        yield from _of_documents(recorded.body, live.body)


def _of_documents(recorded: bytes, live: bytes) -> Iterator[str]:
    values = [_decoded(recorded), _decoded(live)]
    if NO_JSON in values:
        if values[0] != values[1]:
            yield "body: only one of them is JSON"
        return
    yield from _of_values("$", *values)


def _of_streams(recorded: bytes, live: bytes) -> Iterator[str]:
    pairs = zip_longest(_event_shapes(recorded), _event_shapes(live), fillvalue="the end")
    for number, (was, came) in enumerate(pairs, 1):
        if was != came:
            yield _told(f"stream, part {number}", was, came)
            return


def _event_shapes(body: bytes) -> list[str]:
    """Shapes of a stream's events, in order; equal neighbours are merged."""
    shapes: list[str] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        shape = _event_shape(block.decode(errors="replace"))
        if shape and shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes


def _event_shape(block: str) -> str:
    """Shape of one event (WHATWG HTML 9.2); empty for a comment."""
    fields = [line.partition(":") for line in block.split("\n")]
    name = next((value.strip() for field, _, value in fields if field == "event"), "")
    data = "\n".join(value.removeprefix(" ") for field, _, value in fields if field == "data")
    if not data:
        return name
    value = _decoded(data.encode())
    return f"{name} {data if value is NO_JSON else shape_of(value)}".strip()


NO_JSON = object()
"""Marks a body that is not JSON."""


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_JSON


def shape_of(value: object, key: str = "") -> str:
    """Formats keys and types of a JSON value. List items of equal shape appear once."""
    if isinstance(value, dict):
        if _is_table(value):
            return "{*: " + " | ".join(_distinct(value.values())) + "}"
        items = [f"{name}: {shape_of(item, name)}" for name, item in sorted(value.items())]
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + " | ".join(_distinct(value)) + "]"
    return repr(value) if key in NAMES and isinstance(value, str) else _kind(value)


def _distinct(values: Any) -> Sequence[str]:
    return list(dict.fromkeys(map(shape_of, values)))


def _is_table(value: Mapping[str, object]) -> bool:
    """True if all keys are token ids: then only the shapes of the values matter."""
    return bool(value) and all(key.isdecimal() for key in value)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "number" if isinstance(value, int | float) else "string"


def _of_values(path: str, was: object, came: object, key: str = "") -> Iterator[str]:
    if isinstance(was, dict) and isinstance(came, dict) and not (_is_table(was) or _is_table(came)):
        for name in sorted(was.keys() | came.keys()):
            if name not in came:
                yield f"{path}.{name}: was recorded, and did not come"
            elif name not in was:
                yield f"{path}.{name}: came, and was not recorded"
            else:
                yield from _of_values(f"{path}.{name}", was[name], came[name], name)
    elif isinstance(was, list) and isinstance(came, list):
        if was and came and isinstance(was[0], dict) and isinstance(came[0], dict):
            yield from _of_values(f"{path}[0]", was[0], came[0])
        elif bool(was) != bool(came) or (_distinct(was[:1]) != _distinct(came[:1])):
            yield _told(path, shape_of(was[:1]), shape_of(came[:1]))
    elif shape_of(was, key) != shape_of(came, key):
        yield _told(path, shape_of(was, key), shape_of(came, key))


def _told(path: str, was: str, came: str) -> str:
    return f"{path}: {_short(was)} was recorded, {_short(came)} came"


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
