"""`python -m app drift`: compares the shapes of a live server's answers with recorded ones."""

from collections.abc import Sequence
from contextlib import closing

import msgspec

from app.core.server.http.client import Target, whole_response
from app.core.server.http.relay import NOT_FORWARDED, READ_TIMEOUT_S
from app.core.server.middleware.masking import MASK
from app.extensions.recording.comparison import (
    SHAPE_AND_CONSTANTS,
    ReceivedAnswer,
    Shapes,
    differences,
    shapes_of,
)
from app.extensions.recording.exchange import RecordedRequest, RecordingError, bytes_of
from app.extensions.recording.lines import recorded
from app.extensions.recording.request_form import json_object
from config.declaration import COMMAND
from config.flags import FlagParser
from config.printable import one_line

DESCRIPTION = """\
Send each request of a recording to a live server, one after the other, and report where its answers
differ from the recorded ones in shape: status, content type, keys, types of values, order of
events, and constants of the protocol such as finish_reason (docs/recording.md). The exit status is
1 if any answer differs.
"""
MAX_DIFFERENCES = 5
"""Most differences of an exchange that are printed."""


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
        recorded_answer = ReceivedAnswer(answer.status, answer.headers, answer.body())
        recorded_shapes = shapes_of(recorded_answer, SHAPE_AND_CONSTANTS)
        live_shapes = live_shapes_of(target, request, options.api_key, options.model)
        lines = list(differences(recorded_shapes, live_shapes))
        count += 1
        if lines:
            print(f"line {number}: {request.method} {request.target}: {len(lines)} differences")
            shown_lines = [f"    {one_line(line)}" for line in lines[:MAX_DIFFERENCES]]
            print(*shown_lines, sep="\n", flush=True)
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
    headers, body = sent_parts(request, key, model)
    path = target.prefix + request.target
    try:
        with closing(target.connection(READ_TIMEOUT_S)) as connection:
            response, content = whole_response(
                connection, request.method, path, body=body or None, headers=headers
            )
    except (OSError, ValueError) as error:  # also for a recorded method or header
        raise RecordingError(f"{target.url}: {error}") from None
    answer = ReceivedAnswer(response.status, list(response.headers.items()), content)
    return shapes_of(answer, SHAPE_AND_CONSTANTS)


def sent_parts(
    request: RecordedRequest, key: str | None = None, model: str | None = None
) -> tuple[dict[str, str], bytes]:
    """Returns the headers and the body with which a recorded request is sent again.

    `key` and `model` replace the recorded ones.
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
    return headers, body
