"""Requests leave no cyclic garbage behind."""

from tests.core.engine.test_garbage import check_garbage


def test_a_finished_stream_keeps_no_memory() -> None:
    check_garbage("/v1/responses", {"input": "hi", "stream": True}, "200")
