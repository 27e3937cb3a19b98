"""Requests leave no cyclic garbage behind."""

from tests.core.engine.test_garbage import MESSAGES, check_garbage


def test_request_leaves_no_cyclic_garbage() -> None:
    body = {"model": "understudy-tiny", "messages": MESSAGES, "max_tokens": 3}
    check_garbage("/v1/messages", body, "200")
