"""Requests that share steps and break: each ends alone."""

from __future__ import annotations

from tests.engine.harness import engine_request
from tests.engine.stepped import stepped


def test_a_sequence_that_breaks_takes_no_other_with_it() -> None:
    harness = stepped()
    harness.ask("good", max_tokens=6)
    taken: list[object] = []

    def breaks(event: object) -> None:
        taken.append(event)
        if len(taken) == 4:
            raise RuntimeError("nobody takes it")

    harness.engine.submit([engine_request(request_id="bad", max_tokens=20)], breaks)
    harness.clock.advance(2)
    assert harness.finish("good") == "length"
    assert harness.metric("request_success_total", finished_reason="error") == 1
    assert harness.is_idle()


def test_one_that_ends_at_once_may_end_others_or_break() -> None:
    harness = stepped()
    doomed = harness.ask("doomed", max_tokens=20)

    def ends_the_other(event: object) -> None:
        doomed.abort()

    def breaks(event: object) -> None:
        raise RuntimeError("nobody takes it")

    for name, emit in (("ends", ends_the_other), ("breaks", breaks)):
        harness.engine.submit([engine_request(request_id=name, least_hit_rate=0.5)], emit)
    harness.ask("good", max_tokens=6)
    harness.clock.advance(2)
    assert harness.finish("good") == "length" and not harness.of("doomed")
    assert harness.metric("request_success_total", finished_reason="error") == 1
    assert harness.is_idle()
