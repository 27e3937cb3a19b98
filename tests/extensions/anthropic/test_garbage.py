"""Requests leave no cyclic garbage behind."""

from tests.core.engine.test_garbage import MESSAGES, check_garbage


def test_a_request_leaves_nothing_behind() -> None:
    body = {"model": "understudy-tiny", "messages": MESSAGES, "max_tokens": 3}
    check_garbage("/v1/messages", body, "200")
