"""Compares the answers of two servers: start with `shapes_of` and `differences`.

A shape is status, content type, keys, types of values, and the order of a stream's events. Texts,
numbers and ids differ between runs; clients rely on the shape. `ComparisonRules` name the fields
and headers whose values are compared, too.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import itemgetter

from msgspec import Struct

from app.extensions.recording.exchange import Headers, header_of
from config.untrusted import UntrustedDataError, decode_untrusted

CONSTANTS = frozenset(("object", "type", "role"))
"""Fields with protocol constants as values."""
BY_TEXT = frozenset(("top_logprobs",))
"""Fields whose members are named by the text of a token."""
MAX_SHAPE_LENGTH = 160
"""Most characters of a shape that are printed."""
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
NO_CHOICE = sys.maxsize
"""Choice of events that are about none."""
Shapes = Sequence[set[str]]
"""Status and headers, then the shape of the body, or of each event of a stream."""
_FAMILY = re.compile(r"# TYPE (\S+) (\w+)")
_SAMPLE = re.compile(r"(\w[\w:]*)\{([^}]*)\}")
_LABEL = re.compile(r'(\w+)="')


class ComparisonRules(Struct, frozen=True):
    """Names of the parts of an answer that are compared besides its shape.

    Attributes:
        values: Names of fields whose values are compared, also where they are lists.
        ignored: Names of fields that are not compared.
        counted: Names of lists whose lengths are compared.
        headers: Names of headers whose values are compared (lower case).
        unstable_headers: Names of headers that are not compared; None compares no names of headers.
        ignored_families: Beginnings of the names of metrics that are not compared.
    """

    values: frozenset[str] = CONSTANTS
    ignored: frozenset[str] = frozenset()
    counted: frozenset[str] = frozenset()
    headers: frozenset[str] = frozenset()
    unstable_headers: frozenset[str] | None = None
    ignored_families: tuple[str, ...] = ()


SHAPE_ONLY = ComparisonRules()
SHAPE_AND_CONSTANTS = ComparisonRules(
    CONSTANTS | {"finish_reason", "stop_reason", "status", "reason", "code"}
)
"""Rules of `drift`: clients branch on these fields. `reason` is of `incomplete_details`."""


class ReceivedAnswer(Struct, frozen=True):
    """A whole answer of a server."""

    status: int
    headers: Headers
    body: bytes


def differences(
    recorded_shapes: Shapes, live_shapes: Shapes, names: tuple[str, str] = ("recorded", "live")
) -> Iterator[str]:
    """Yields a line for each difference in shape; of streams, for the first part that differs.

    `names` of the two answers are parts of the lines.
    """
    recorded_name, live_name = names
    shapes = zip_longest(recorded_shapes, live_shapes, fillvalue={"the end"})
    for number, (recorded_shape, live_shape) in enumerate(shapes):
        if recorded_shape == live_shape:
            continue
        missing = sorted(recorded_shape - live_shape)
        new = sorted(live_shape - recorded_shape)
        if number == 1 and len(recorded_shapes) == len(live_shapes) == 2:
            yield from (f"{line}: only in the {recorded_name} answer" for line in missing)
            yield from (f"{line}: only in the {live_name} answer" for line in new)
        else:
            position = f"stream, part {number}: " if number else ""
            recorded = f"{_joined(missing)} in the {recorded_name} answer"
            yield f"{position}{recorded}, {_joined(new)} in the {live_name} answer"
        return


def _joined(lines: Sequence[str]) -> str:
    return ", ".join(lines)[:MAX_SHAPE_LENGTH] or "less"


def shapes_of(answer: ReceivedAnswer, rules: ComparisonRules = SHAPE_ONLY) -> Shapes:
    """Returns the shapes of an answer; of a stream (WHATWG HTML 9.2), without repetitions.

    The choices of a stream come in any order. The shapes of each choice are together.
    """
    content_type = header_of(answer.headers, "content-type")
    media_type = content_type.partition(";")[0].strip().lower()
    shapes = [{f"status {answer.status}", f"content type {media_type}"}]
    shapes[0] |= _header_shape(answer.headers, rules)
    if media_type == "text/event-stream":
        shapes.extend(_stream_shapes(answer.body, rules))
    elif media_type.endswith("json"):
        shapes.append(shape_of(_decoded(answer.body), rules))
    elif answer.body.startswith(b"# HELP"):
        shapes.append(_metric_shape(answer.body.decode(errors="replace"), rules))
    else:
        shapes.append(set())
    return shapes


def _header_shape(headers: Headers, rules: ComparisonRules) -> set[str]:
    """Returns the names of headers, with values where the rules name the header."""
    shape: set[str] = set()
    for header, value in headers:
        name = header.lower()
        if name in rules.headers:
            items = sorted(item.strip() for item in value.split(","))
            shape.add(f"header {name}: {', '.join(items)}")
        elif rules.unstable_headers is not None and name not in rules.unstable_headers:
            shape.add(f"header {name}")
    return shape


def _stream_shapes(body: bytes, rules: ComparisonRules) -> list[set[str]]:
    """Returns the shapes of the events of a stream.

    Where there are several choices, their events are sorted by choice, and other events are last.
    """
    events: list[tuple[int, set[str]]] = []
    for block in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        shape, data = _event_shape(block.decode(errors="replace"), rules)
        if shape:
            events.append((_choice_of(data), shape))
    if len({choice for choice, _ in events} - {NO_CHOICE}) > 1:
        events.sort(key=itemgetter(0))
    shapes: list[set[str]] = []
    for _, shape in events:
        if shape not in shapes[-1:]:
            shapes.append(shape)
    return shapes


def _choice_of(event: object) -> int:
    """Returns the choice that an event is about, or `NO_CHOICE`."""
    choices = event.get("choices") if isinstance(event, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return NO_CHOICE
    index = choices[0].get("index")
    return index if isinstance(index, int) else NO_CHOICE


def _event_shape(block: str, rules: ComparisonRules) -> tuple[set[str], object]:
    """Returns the shape of an event of a stream (name and data), and the decoded data."""
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
        shape |= shape_of(event, rules)
    elif data:
        shape.add(data)
    return shape, event


def _decoded(body: bytes) -> object:
    try:
        value: object = decode_untrusted(body)
    except UntrustedDataError:
        return NOT_JSON
    return value


def shape_of(value: object, rules: ComparisonRules = SHAPE_ONLY, path: str = "$") -> set[str]:
    """Returns each path of a JSON value with its type.

    Items of a list, and members under token ids or texts of tokens, share a path.
    """
    name = path.rpartition(".")[2].rstrip("[]")
    if name in rules.values and not isinstance(value, dict):
        return {f"{path}: {value!r}"}
    shape: set[str] = set()
    if isinstance(value, dict) and value:
        is_by_token = name in BY_TEXT or all(map(str.isdecimal, value))
        for key, member in value.items():
            if key not in rules.ignored:
                member_path = f"{path}.*" if is_by_token else f"{path}.{key}"
                shape |= shape_of(member, rules, member_path)
    elif isinstance(value, list) and value:
        if name in rules.counted:
            shape.add(f"{path}: {len(value)} items")
        for item in value:
            shape |= shape_of(item, rules, f"{path}[]")
    else:
        shape.add(f"{path}: {TYPE_NAMES.get(type(value), 'not JSON')}")
    return shape


def _metric_shape(exposition: str, rules: ComparisonRules) -> set[str]:
    """Returns the families of Prometheus metrics with their types, and the labels of samples."""
    shape: set[str] = set()
    for name, kind in _FAMILY.findall(exposition):
        if not name.startswith(rules.ignored_families):
            shape.add(f"family {name} {kind}")
    for name, labels in _SAMPLE.findall(exposition):
        if name.startswith(rules.ignored_families):
            continue
        shape.add(f"sample {name}")
        shape.update(f"sample {name}, label {label}" for label in _LABEL.findall(labels))
    return shape
