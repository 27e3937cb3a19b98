"""`python -m app drift`: sends recorded requests to a live server and prints how the answers'
shapes differ.

A shape is status, content type, keys, types of values, and the order of a stream's events.
Texts, numbers and ids differ between runs; clients rely on the shape.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from http.client import HTTPException
from itertools import zip_longest

import msgspec

from app.serving.http.client import Target
from app.serving.http.relay import NOT_FORWARDED, READ_TIMEOUT_S
from app.serving.middleware.masking import MASK
from app.serving.recording import exchange as recordings
from app.serving.recording.lines import recorded
from config.declaration import COMMAND
from config.flags import FlagParser

ABOUT = """\
Send every request of a recording to a live server, one after the other, and tell where its answers depart
from the recorded ones in shape: status, kind of content, keys, kinds of values, order of events
(docs/recording.md). Exit status 1 when some do.
"""
MOST_TOLD = 5
MOST_SHOWN = 160
CONSTANTS = ("object", "type", "role")
"""Fields with protocol constants as values; these values are compared."""
KINDS: dict[type, str] = {
    **{str: "string", int: "number", float: "number", bool: "bool", type(None): "null"},
    **{dict: "empty object", list: "empty list"},
}
NO_JSON = object()
Shapes = Sequence[set[str]]
"""Status and content type, then the shape of the body, or of each event of a stream."""


def run(argv: Sequence[str]) -> int:
    flags = FlagParser(prog=f"{COMMAND} drift", description=ABOUT, allow_abbrev=False)
    add = flags.add_argument
    add("file", metavar="FILE", help="a recording of record --proxy")
    add("--target", required=True, metavar="URL", help="the live server, such as http://host:8000")
    add("--api-key", metavar="KEY", help="of the server; recorded keys are masked")
    add("--model", metavar="NAME", help="to ask for, instead of the recorded one")
    given = flags.parse_args(argv)
    target = Target.from_url(given.target)
    agree = count = 0
    for number, exchange in recorded(given.file):
        request, answer = exchange.request, exchange.answer
        was = shapes_of(
            answer.status, recordings.header_of(answer.headers, "content-type"), answer.body()
        )
        found = list(differences(was, asked(target, request, given.api_key, given.model)))
        count, agree = count + 1, agree + (not found)
        if found:
            print(f"line {number}: {request.method} {request.target}: {len(found)} differences")
            print(*(f"    {line}" for line in found[:MOST_TOLD]), sep="\n", flush=True)
    print(f"{agree} of {count} exchanges agree")
    return 0 if agree == count else 1


def asked(
    target: Target, request: recordings.RecordedRequest, key: str | None, model: str | None
) -> Shapes:
    """Sends a recorded request to `target` and returns the answer's shapes.

    RecordingError: no answer.
    """
    left_out = NOT_FORWARDED | {"accept-encoding"}
    headers = {
        name: value for name, value in request.headers if value != MASK and name not in left_out
    }
    headers |= {} if key is None else {"authorization": f"Bearer {key}"}
    body = recordings.bytes_of(request.body)
    if model and "model" in (fields := recordings.json_object(body) or {}):
        body = msgspec.json.encode({**fields, "model": model})
    with closing(target.connection(READ_TIMEOUT_S)) as connection:
        try:
            connection.request(
                request.method, target.prefix + request.target, body or None, headers
            )
            response = connection.getresponse()
            content = response.read(recordings.MOST_LINE_BYTES)
        except (OSError, HTTPException) as error:
            raise recordings.RecordingError(f"{target.url}: {error!r}") from None
        return shapes_of(response.status, response.getheader("content-type") or "", content)


def differences(recorded: Shapes, live: Shapes) -> Iterator[str]:
    """Yields a line for each difference in shape; of streams, for the first part that differs."""
    for number, (was, came) in enumerate(zip_longest(recorded, live, fillvalue={"the end"})):
        if was == came:
            continue
        if number == 1 and len(recorded) == len(live) == 2:
            yield from (f"{line}: was recorded, and did not come" for line in sorted(was - came))
            yield from (f"{line}: came, and was not recorded" for line in sorted(came - was))
        else:
            before, now = (
                ", ".join(sorted(lines))[:MOST_SHOWN] for lines in (was - came, came - was)
            )
            place = f"stream, part {number}: " if number else ""
            yield f"{place}{before or 'less'} was recorded, {now or 'less'} came"
        return


def shapes_of(status: int, content_type: str, body: bytes) -> Shapes:
    """Returns the shapes of an answer.

    Of a stream (WHATWG HTML 9.2), equal neighbours are merged.
    """
    kind = content_type.partition(";")[0].strip().lower()
    shapes = [{f"status {status}", f"content type {kind}"}]
    if kind != "text/event-stream":
        return [*shapes, shape_of(_decoded(body)) if kind.endswith("json") else set()]
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = [line.partition(":") for line in block.decode(errors="replace").split("\n")]
        data = "\n".join(value.removeprefix(" ") for field, _, value in fields if field == "data")
        value = _decoded(data.encode())
        shape = {f"event {value.strip()}" for field, _, value in fields if field == "event"}
        shape |= {data} - {""} if value is NO_JSON else shape_of(value)
        if shape and shape != shapes[-1]:
            shapes.append(shape)
    return shapes


def _decoded(body: bytes) -> object:
    try:
        value: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return NO_JSON
    return value


def shape_of(value: object, path: str = "$") -> set[str]:
    """Returns each path of a JSON value with its kind.

    Items, and members under token ids, share a path.
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
