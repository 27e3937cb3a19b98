"""A sender of events by itself, on a clock that we move."""

from __future__ import annotations

import logging
import math

import pytest

from app.clock.clock import VirtualClock
from app.kvcache.endpoints import PublisherSettings
from app.kvcache.event_sender import EventSender
from tests.kvcache.sockets import TOPIC, removed


def test_of_events_that_are_lost_all_the_time_one_line_a_minute_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock(100.0)
    sender = EventSender(PublisherSettings(endpoint=None, topic=TOPIC, queue_events=1), now=clock.now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1 + 3 * 60):  # once a second; the first has room
            sender.put(removed(1))
            clock.advance(1)
    assert sender.published.dropped_events == 180
    assert [record.getMessage().split(",")[1] for record in caplog.records] == [
        " 1 are lost so far",
        " 61 are lost so far",
        " 121 are lost so far",
    ]


def test_events_go_to_listeners_in_batches_with_numbers_and_the_time_of_day() -> None:
    settings = PublisherSettings(endpoint=None, topic=TOPIC, batch_events=2, flush_s=5.0)
    clock = VirtualClock(100.0)
    sender = EventSender(settings, wall=lambda: 1.5, now=clock.now)
    heard: list[tuple[int, float, int]] = []
    sender.listen(lambda topic, sequence, batch: heard.append((sequence, batch.ts, len(batch.events))))
    sender.put(removed(1))
    assert sender.turn() == math.inf and len(heard) == 1  # the first goes at once
    sender.put(removed(2))
    assert sender.turn() == 105.0 and len(heard) == 1
    sender.put(removed(3))
    sender.turn()
    assert heard == [(0, 1.5, 1), (1, 1.5, 2)]
    assert (sender.published.batches, sender.published.events) == (2, 3)


def test_who_answers_replays_looks_for_requests_ten_times_a_second_as_vllm_does() -> None:
    settings = PublisherSettings(endpoint=None, topic=TOPIC, replay_endpoint="tcp://127.0.0.1:0")
    clock = VirtualClock(100.0)
    sender = EventSender(settings, now=clock.now)
    try:
        assert sender.turn() == 100.1
        sender.put(removed(1))
        sender.turn()
        sender.put(removed(2))
        clock.advance(0.95)
        assert sender.turn() == 101.0  # fewer events than a batch wait a second
    finally:
        sender.close()
