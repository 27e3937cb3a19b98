"""Who gets frames, who loses some, and when nobody looks any more."""

from __future__ import annotations

from typing import Any

import gevent
import pytest

from app.console import feed as feeds
from app.console.feed import MOST_CONSOLES, Box, Feed
from app.http.errors import ApiError
from tests.console.watched import Watched


@pytest.fixture
def it() -> Watched:
    return Watched(seen=False, inter_token_latency=0.01)


def feed_of(it: Watched) -> Feed:
    return Feed(it.observer, lambda: {"model": "test"}, every_s=0.001)


def kinds(data: bytes) -> list[str]:
    return [event.split(b"\n")[0].removeprefix(b"event: ").decode() for event in data.split(b"\n\n") if event]


def read(box: Box, least: int) -> list[str]:
    """The kinds of the next events, as many as there must be."""
    events, pieces = list[str](), iter(box)
    while len(events) < least:
        events += kinds(next(pieces))
    return events


def test_a_console_gets_a_picture_and_then_frames(it: Watched) -> None:
    feed = feed_of(it)
    box = feed.open()
    assert read(box, 4)[:4] == ["picture", "frame", "frame", "frame"]
    box.close()


def test_the_engine_is_observed_as_long_as_somebody_looks(it: Watched) -> None:
    feed = feed_of(it)
    first, second = feed.open(), feed.open()
    assert it.observer.is_open
    first.close()
    first.close()
    assert it.observer.is_open
    second.close()
    assert not it.observer.is_open
    gevent.sleep(0.01)
    third = feed.open()
    assert read(third, 2)[0] == "picture"
    third.close()


def test_there_are_few_consoles(it: Watched) -> None:
    feed = feed_of(it)
    boxes = [feed.open() for _ in range(MOST_CONSOLES)]
    with pytest.raises(ApiError, match="consoles already") as refused:
        feed.open()
    assert refused.value.status == 503
    boxes.pop().close()
    boxes.append(feed.open())
    for box in boxes:
        box.close()


def test_a_browser_that_does_not_read_loses_frames_and_gets_the_whole_picture(
    it: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BOX_BYTES", 1500)
    feed = feed_of(it)
    slow, quick = feed.open(), feed.open()
    pieces = iter(slow)
    next(pieces)
    assert kinds(next(pieces))[0] == "picture"
    read(quick, 60)
    assert slow.lost
    seen = [kind for _ in range(3) for kind in kinds(next(pieces))]
    assert "picture" in seen
    for box in (slow, quick):
        box.close()


def test_a_browser_that_never_reads_is_cut_off(it: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "BOX_BYTES", 2000)
    monkeypatch.setattr(feeds, "PATIENCE_S", 0.02)

    class Connection:
        was_shut = False

        def watch(self, gone: Any) -> None: ...
        def unwatch(self) -> None: ...
        def shut(self) -> None:
            self.was_shut = True

    feed, connection = feed_of(it), Connection()
    box = feed.open(connection)  # type: ignore[arg-type]
    pieces = iter(box)
    next(pieces)
    next(pieces)
    with gevent.Timeout(5):
        while not connection.was_shut:
            gevent.sleep(0.01)
    assert len(feed) == 0 and not it.observer.is_open


def test_a_worker_that_goes_ends_all_streams(it: Watched) -> None:
    feed = feed_of(it)
    boxes = [feed.open() for _ in range(3)]
    assert read(boxes[0], 1)
    feed.close()
    assert len(feed) == 0 and all(box.gone for box in boxes)


def test_a_frame_that_cannot_be_made_ends_the_streams_and_nothing_else(
    it: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("broken on purpose")

    feed = feed_of(it)
    box = feed.open()
    monkeypatch.setattr(it.observer, "frame", broken)
    gevent.sleep(0.02)
    assert box.gone and not it.observer.is_open
