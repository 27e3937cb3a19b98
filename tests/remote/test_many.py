"""Requests with many choices, and the limits of the queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.wire import Wire, get, is_error, post, wait_until
from tests.remote.served import SENTENCE, Peer, new_peer, served
from tests.running_server import RunningServer


def test_many_choices_are_all_ordered_and_answered_in_place(remote: RunningServer, peer: Peer) -> None:
    prompts = [f"Hello number {number}" for number in range(20)]
    asked = {"prompt": prompts, "n": 10, "max_tokens": 2, "seed": 1}
    choices = post(remote.port, asked).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(200))
    assert {choice["text"] for choice in choices} == {SENTENCE[:8]}
    orders = peer.orders[-200:]
    assert len({order["key"] for order in orders}) == 200
    assert [order["seed"] for order in orders] == [*range(1, 11)] * 20


@pytest.fixture
def slow(tmp_path: Path) -> Peer:
    slow = new_peer(tmp_path / "model")
    slow.says(SENTENCE * 20, pace_s=0.02)
    return slow


def test_beyond_slots_and_queue_requests_are_refused(slow: Peer) -> None:
    limits = {"max_num_seqs": "2", "max_waiting_queue_length": "1", "graceful_timeout": "1s"}
    with served(slow, **limits) as server, Wire(server.port) as first:
        next(first.post({"prompt": "Hello", "n": 3, "max_tokens": 200, "stream": True}).events())
        is_error(post(server.port, {"prompt": "Hello"}), 429, "RateLimitError")
        first.reset()
        wait_until(lambda: post(server.port, {"prompt": "Hello", "max_tokens": 1}).status == 200)
        assert get(server.port, "/health").status == 200
