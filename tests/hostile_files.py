"""Damaged versions of a good file, by name: what programs, editors and networks do to files."""

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tests.drawn import drawn

Path = tuple[str | int, ...]
"""Keys and indices that lead to a place in a JSON value."""
NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")
TEXT = re.compile(rb'"[^"]*"(?!\s*:)')
VALUES: tuple[object, ...] = (
    None,
    True,
    -1,
    1.5,
    float("inf"),
    float("nan"),
    10**30,
    "x",
    "0000-00-00T00:00:00Z",
    "0001-01-01T00:00:00+23:59",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"a": 1},
)
"""Values of all types, for a place that expects another one."""
BOMB = gzip.compress(bytes(64 << 20))
"""64 MiB of zeros in 65 KB."""


def damaged_files(good: bytes) -> dict[str, bytes]:
    """Returns those of more than fifty damaged files that this run draws.

    Each has a name, for a message.
    """
    lines = good.splitlines(keepends=True)
    text = good.decode("utf-8", errors="replace")
    files = {
        "empty": b"",
        "blanks": b" \t\n\n \n",
        "byte order mark": b"\xef\xbb\xbf",
        "byte order mark before": b"\xef\xbb\xbf" + good,
        "UTF-16": text.encode("utf-16"),
        "UTF-16 without a mark": text.encode("utf-16-le"),
        "UTF-32": text.encode("utf-32"),
        "not UTF-8": good[:-2] + b"\xff\xfe" + good[-2:],
        "NUL bytes": b"\0".join([good[:10], good[10:]]),
        "only NUL bytes": bytes(5000),
        "program": b"\x7fELF\x02\x01\x01" + bytes(range(256)) * 20,
        "gzip": gzip.compress(good),
        "gzip in gzip": gzip.compress(gzip.compress(good)),
        "gzip cut off": gzip.compress(good)[:-9],
        "gzip magic": b"\x1f\x8b",
        "gzip with garbage after": gzip.compress(good) + b"garbage",
        "gzip bomb": BOMB,
        "half": good[: len(good) // 2],
        "without the last byte": good.rstrip()[:-1],
        "without the first byte": good[1:],
        "twice": good + good,
        "twice in a line": good.rstrip() + good,
        "lines in reverse": b"".join(reversed(lines)),
        "every line twice": b"".join(line + line for line in lines),
        "CR": good.replace(b"\n", b"\r"),
        "CRLF": good.replace(b"\n", b"\r\n"),
        "deep lists": b"[" * 50_000,
        "deep objects": b'{"a":' * 50_000,
        "deep closed lists": b"[" * 3000 + b"]" * 3000,
        "deep tail": good.rstrip() + b"[" * 3000,
        "number of many digits": NUMBER.sub(b"9" * 5000, good, count=1),
        "long text": TEXT.sub(b'"' + b"x" * (1 << 20) + b'"', good, count=1),
        "line of a MiB": good + b"," * (1 << 20),
        "open quotes": good + b'"',
        "lone surrogate": TEXT.sub(rb'"\\ud800"', good),
        "texts of numbers": TEXT.sub(b"7", good),
    }
    for name in (b"1e400", b"-1e400", b"NaN", b"-1", b"1e300", b"18446744073709551616", b"0x1p3"):
        files[f"every number {name.decode()}"] = NUMBER.sub(name, good)
    for name in (b"null", b"true", b"[]", b"{}", b'""', b'"0000-00-00 00:00:00"'):
        files[f"every number {name.decode()}"] = NUMBER.sub(name, good)
        files[f"every text {name.decode()}"] = TEXT.sub(name, good)
    return dict(drawn(files.items()))


def retyped_documents(
    document: Any, values: Sequence[object] = VALUES
) -> Iterator[tuple[str, Any]]:
    """Yields copies of a JSON value in which each place in turn has each of `values`.

    Each copy comes with the place and the value. Each member is also removed. Only the copies that
    this run draws are made.
    """
    paths = list(_paths(document))
    retyped = [partial(_retyped, path, value) for path in paths for value in values]
    for copy in drawn([*retyped, *(partial(_removed, path) for path in paths if path)]):
        yield copy(document)


def _retyped(path: Path, value: object, document: Any) -> tuple[str, Any]:
    return f"{path}: {value!r}", _with(document, path, value)


def _removed(path: Path, document: Any) -> tuple[str, Any]:
    return f"{path}: removed", _without(document, path)


def _paths(value: Any, path: Path = ()) -> Iterator[Path]:
    yield path
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _paths(member, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _paths(item, (*path, number))


def _with(document: Any, path: Path, value: object) -> Any:
    if not path:
        return value
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return copy


def _without(document: Any, path: Path) -> Any:
    copy = json.loads(json.dumps(document))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return copy
