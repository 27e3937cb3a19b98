"""Greenlets that run handlers."""

from functools import partial
from weakref import WeakSet

import gevent
import pytest
from gevent.event import Event

from app.core.server.gunicorn.handler_greenlets import MAX_IDLE, HandlerGreenlets


def in_hub(handlers: HandlerGreenlets, *works: object) -> None:
    """Runs works from the hub, one after the other."""
    for work in works:
        gevent.get_hub().loop.run_callback(handlers.run, work)
    gevent.sleep(0.001)


def test_handlers_run_immediately_and_reuse_greenlets() -> None:
    handlers = HandlerGreenlets()
    greenlets = []

    def note_greenlet() -> None:
        greenlets.append(gevent.getcurrent())

    in_hub(handlers, note_greenlet, note_greenlet, note_greenlet)
    assert len(greenlets) == 3
    assert len(set(greenlets)) == 1


def test_waiting_handler_does_not_delay_other_handlers() -> None:
    handlers = HandlerGreenlets()
    bell = Event()
    seen = []

    def wait() -> None:
        bell.wait()
        seen.append("waited")

    in_hub(handlers, wait, partial(seen.append, "at once"))
    assert seen == ["at once"]
    bell.set()
    gevent.sleep(0.001)
    assert seen == ["at once", "waited"]


def test_number_of_idle_handler_greenlets_kept_for_reuse_is_limited() -> None:
    handlers = HandlerGreenlets()
    bell = Event()

    class Work:
        def __call__(self) -> None:
            bell.wait()

    works = [Work() for _ in range(MAX_IDLE + 9)]
    remaining_works = WeakSet(works)
    in_hub(handlers, *works)
    bell.set()
    gevent.sleep(0.01)
    assert len(handlers._idle) == MAX_IDLE
    works.clear()
    assert len(remaining_works) == 0


def test_killing_the_waiting_handlers_does_not_affect_later_handlers() -> None:
    handlers = HandlerGreenlets()
    ended = []

    def wait() -> None:
        try:
            Event().wait()
        finally:
            ended.append(True)

    in_hub(handlers, wait, wait)
    handlers.kill()
    assert ended == [True, True]
    seen: list[int] = []
    in_hub(handlers, partial(seen.append, 1))
    assert seen == [1]


def test_failing_handler_ends_only_its_greenlet(capsys: pytest.CaptureFixture[str]) -> None:
    handlers = HandlerGreenlets()
    seen: list[int] = []

    def fail() -> None:
        raise ValueError("a defect")

    in_hub(handlers, fail, partial(seen.append, 1))
    assert seen == [1]
    assert "a defect" in capsys.readouterr().err
