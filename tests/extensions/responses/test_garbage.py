"""Requests leave no cyclic garbage behind."""

from tests.core.engine.test_garbage import check_garbage


def test_finished_stream_leaves_no_cyclic_garbage() -> None:
    check_garbage("/v1/responses", {"input": "hi", "stream": True}, "200")
