"""Contents for readers of foreign data: garbage, deep nests, wrong types, and damaged good ones."""

import json

from hypothesis import strategies as st

DEEP = [
    b"[" * 50_000,
    b'{"a":' * 50_000,
    b"\x91" * 50_000,
    b"[" * 1_500 + b"]" * 1_500,
    b"- " * 1_500,
]
NOT_TEXT = [b"\xff\xfe", b'{"a": "\xff"}', b"\x82\xa1a\xa2\xff\xfe", b"\x1f\x8b\x08\xff"]
NUMBERS = [b"1" * 5_000, b'{"a": 1e999}', b'{"a": NaN}', b"-0", b'{"a": ' + b"9" * 400 + b"}"]


def lists_and_objects(items: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """Returns lists and objects of `items`."""
    return st.lists(items, max_size=3) | st.dictionaries(st.text(max_size=5), items, max_size=3)


def json_text(value: object) -> bytes:
    """Returns a value as JSON, with NaN and infinities as Python writes them."""
    return json.dumps(value).encode()


def json_values() -> st.SearchStrategy[object]:
    """Returns values of all types of JSON."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    return st.recursive(
        leaves,
        lists_and_objects,
        max_leaves=8,
    )


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """Returns a good content that is truncated, or has some other bytes."""
    content = bytearray(good[: draw(st.integers(1, len(good)))])
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(content) - 1))
        content[place] = draw(st.integers(0, 255))
    return bytes(content)


@st.composite
def retyped(draw: st.DrawFn, good: bytes) -> bytes:
    """Returns JSON lines of which one has a value of another type somewhere."""
    lines = good.splitlines()
    number = draw(st.integers(0, len(lines) - 1))
    try:
        document = json.loads(lines[number])
    except ValueError:
        return draw(damaged(good))
    parent = document
    while isinstance(parent, dict | list) and parent:
        places = [number for number, _ in enumerate(parent)]
        if isinstance(parent, dict):
            places = list(parent)
        key = draw(st.sampled_from(places))
        if not isinstance(parent[key], dict | list) or draw(st.booleans()):
            parent[key] = draw(json_values())
            break
        parent = parent[key]
    lines[number] = json_text(document)
    return b"\n".join(lines)


def hostile_contents(good: bytes) -> st.SearchStrategy[bytes]:
    """Returns contents for a reader that accepts `good`."""
    garbage = st.sampled_from([*DEEP, *NOT_TEXT, *NUMBERS, b""]) | st.binary(max_size=64)
    return garbage | json_values().map(json_text) | damaged(good) | retyped(good)
