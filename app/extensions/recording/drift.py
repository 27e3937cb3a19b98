"""`python -m app drift`: compares the shapes of a live server's answers with recorded ones.

A shape is status, content type, keys, types of values, and the order of a stream's events.
Texts, numbers and ids differ between runs; clients rely on the shape.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPException
from itertools import zip_longest

import msgspec

from app.core.server.http.client import Target
from app.core.server.http.relay import NOT_FORWARDED, READ_TIMEOUT_S
from app.core.server.middleware.masking import MASK
from app.extensions.recording.exchange import (
    MAX_LINE_BYTES,
    RecordedRequest,
    RecordingError,
    bytes_of,
    header_of,
)
from app.extensions.recording.lines import recorded
from app.extensions.recording.request_form import json_object
from config.declaration import COMMAND
from config.flags import FlagParser

DESCRIPTION = """\
Send each request of a recording to a live server, one after the other, and report where its answers
differ from the recorded ones in shape: status, content type, keys, types of values, order of events
(docs/recording.md). The exit status is 1 if any answer differs.
"""
MAX_DIFFERENCES = 5
"""Most differences of an exchange that are printed."""
MAX_SHAPE_LENGTH = 160
"""Most characters of a shape that are printed."""
CONSTANTS = ("object", "type", "role")
"""Fields with protocol constants as values; these values are compared."""
TYPE_NAMES: dict[type, str] = {
    str: "string",
    int: "number",
    float: "number",
    bool: "bool",
    type(None): "null",
    dict: "empty object",
    list: "empty list",
}
NOT_JSON = object()
Shapes = Sequence[set[str]]
"""Status and content type, then the shape of the body, or of each event of a stream."""


def run(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status.

    Raises:
        ConfigError: an option or the recording is not valid, or the server does not answer.
    """
    flags = FlagParser(prog=f"{COMMAND} drift", description=DESCRIPTION, allow_abbrev=False)
    flags.add_argument("file", metavar="FILE", help="a recording of record --proxy")
    flags.add_argument(
        "--target", required=True, metavar="URL", help="live server, such as http://host:8000"
    )
    flags.add_argument(
        "--api-key", metavar="KEY", help="API key of the server; recorded keys are masked"
    )
    flags.add_argument("--model", metavar="NAME", help="model to request, not the recorded one")
    options = flags.parse_args(argv)
    target = Target.from_url(options.target)
    equal_count = 0
    count = 0
    for number, exchange in recorded(options.file):
        request = exchange.request
        answer = exchange.answer
        recorded_shapes = shapes_of(
            answer.status, header_of(answer.headers, "content-type"), answer.body()
        )
        live_shapes = live_shapes_of(target, request, options.api_key, options.model)
        lines = list(differences(recorded_shapes, live_shapes))
        count += 1
        if lines:
            print(f"line {number}: {request.method} {request.target}: {len(lines)} differences")
            print(*(f"    {line}" for line in lines[:MAX_DIFFERENCES]), sep="\n", flush=True)
        else:
            equal_count += 1
    print(f"{equal_count} of {count} exchanges agree")
    return 0 if equal_count == count else 1


def live_shapes_of(
    target: Target, request: RecordedRequest, key: str | None, model: str | None
) -> Shapes:
    """Sends a recorded request to `target` and returns the answer's shapes.

    Raises:
        RecordingError: the server does not answer.
    """
    headers = {
        name: value
        for name, value in request.headers
        if value != MASK and name not in NOT_FORWARDED and name != "accept-encoding"
    }
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = bytes_of(request.body)
    if model:
        fields = json_object(body) or {}
        if "model" in fields:
            body = msgspec.json.encode({**fields, "model": model})
    with closing(target.connection(READ_TIMEOUT_S)) as connection:
        try:
            connection.request(
                request.method, target.prefix + request.target, body or None, headers
            )
            response = connection.getresponse()
            content = response.read(MAX_LINE_BYTES)
        except (OSError, HTTPException) as error:
            raise RecordingError(f"{target.url}: {error!r}") from None
        return shapes_of(response.status, response.getheader("content-type") or "", content)


def differences(recorded_shapes: Shapes, live_shapes: Shapes) -> Iterator[str]:
    """Yields a line for each difference in shape; of streams, for the first part that differs."""
    shapes = zip_longest(recorded_shapes, live_shapes, fillvalue={"the end"})
    for number, (recorded_shape, live_shape) in enumerate(shapes):
        if recorded_shape == live_shape:
            continue
        missing = sorted(recorded_shape - live_shape)
        new = sorted(live_shape - recorded_shape)
        if number == 1 and len(recorded_shapes) == len(live_shapes) == 2:
            yield from (f"{line}: only in the recorded answer" for line in missing)
            yield from (f"{line}: only in the live answer" for line in new)
        else:
            position = f"stream, part {number}: " if number else ""
            yield f"{position}{_joined(missing)} was recorded, {_joined(new)} was received"
        return


def _joined(lines: Sequence[str]) -> str:
    return ", ".join(lines)[:MAX_SHAPE_LENGTH] or "less"


def shapes_of(status: int, content_type: str, body: bytes) -> Shapes:
    """Returns the shapes of an answer; of a stream (WHATWG HTML 9.2), without repetitions."""
    media_type = content_type.partition(";")[0].strip().lower()
    shapes = [{f"status {status}", f"content type {media_type}"}]
    if media_type != "text/event-stream":
        shapes.append(shape_of(_decoded(body)) if media_type.endswith("json") else set())
        return shapes
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        shape = _event_shape(block.decode(errors="replace"))
        if shape and shape != shapes[-1]:
            shapes.append(shape)
    return shapes


def _event_shape(block: str) -> set[str]:
    """Returns the shape of an event of a stream: its name, and the shape of its data."""
    shape: set[str] = set()
    data_lines: list[str] = []
    for line in block.split("\n"):
        field, _, value = line.partition(":")
        if field == "event":
            shape.add(f"event {value.strip()}")
        elif field == "data":
            data_lines.append(value.removeprefix(" "))
    data = "\n".join(data_lines)
    event = _decoded(data.encode())
    if event is not NOT_JSON:
        shape |= shape_of(event)
    elif data:
        shape.add(data)
    return shape


def _decoded(body: bytes) -> object:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NOT_JSON
    return value


def shape_of(value: object, path: str = "$") -> set[str]:
    """Returns each path of a JSON value with its type.

    Items of a list, and members under token ids, share a path.
    """
    shape: set[str] = set()
    if isinstance(value, dict) and value:
        is_by_id = all(map(str.isdecimal, value))
        for name, member in value.items():
            shape |= shape_of(member, f"{path}.*" if is_by_id else f"{path}.{name}")
    elif isinstance(value, list) and value:
        for item in value:
            shape |= shape_of(item, f"{path}[]")
    elif isinstance(value, str) and path.rpartition(".")[2] in CONSTANTS:
        shape.add(f"{path}: {value!r}")
    else:
        shape.add(f"{path}: {TYPE_NAMES.get(type(value), 'not JSON')}")
    return shape
