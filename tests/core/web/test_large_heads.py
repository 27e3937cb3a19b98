"""The heads of all connections together have a limit, with what has arrived but is not parsed."""

from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.http.errors import LimitRequestHeaders

from app.core.server.gunicorn.general import (
    MAX_LARGE_HEADS_BYTES,
    SMALL_HEAD_BYTES,
    FairSocket,
    LargeHeads,
)

ANY_SIZE = 1 << 22


def source(heads: LargeHeads, size: int) -> FairSocket:
    """A connection whose first `size` bytes have arrived."""
    client = SimpleNamespace(gettimeout=None, settimeout=None)
    path = SimpleNamespace(turns=SimpleNamespace(wait=id))
    connection: Any = SimpleNamespace(client=client, path=path, cost=0)
    head = b"GET / HTTP/1.1\r\nX: "
    return FairSocket(connection, head + b"a" * (size - len(head)), heads, ANY_SIZE)


def test_bytes_that_wait_to_be_parsed_count_as_head() -> None:
    heads = LargeHeads()
    size = 50_000
    fitting = MAX_LARGE_HEADS_BYTES // size
    sources = [source(heads, size) for _ in range(fitting)]
    for each in sources:
        each.recv(1)
    assert heads.size_bytes == fitting * size
    with pytest.raises(LimitRequestHeaders):
        source(heads, size).recv(1)
    assert source(heads, SMALL_HEAD_BYTES).recv(1), "a small head always fits"
    for each in sources:
        each.release_head()
    assert heads.size_bytes == 0
    assert source(heads, size).recv(1)


def test_each_byte_of_a_head_counts_once() -> None:
    heads = LargeHeads()
    size = 50_000
    one = source(heads, size)
    while one.data:
        one.recv(1)
        assert heads.size_bytes == size
