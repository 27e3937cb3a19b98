"""What a page is told of an engine whose every moment is known."""

from functools import partial
from random import Random
from unittest.mock import Mock

import gevent
import pytest

from app.core.engine.batch import Phase
from app.extensions.console import bars
from app.extensions.console import feed as feeds
from app.extensions.console.bars import Origin
from app.extensions.console.feed import ClientQueue, Feed
from app.extensions.console.frames import Frame
from tests.extensions.console.watched import Page, Watched
from tests.extensions.explanation.explained import quick_profile

SLOW = {"time_to_first_token": 1.0, "inter_token_latency": 0.1}


def test_a_request_is_a_bar_from_its_arrival_to_its_end() -> None:
    it = Watched(slots=1, **SLOW)
    it.ask("a", prompt_ids=[1, 2, 3], max_tokens=4)
    it.ask("b", max_tokens=4)
    page = it.frame()
    first, second = page.number_of("a"), page.number_of("b")
    assert page.bars[first][1:5] == ["a", 0, 3, 4]
    assert page.phases[first] == [Phase.PREFILL]
    assert second not in page.phases
    page = it.frame(1.0)
    assert page.phases[first] == [Phase.PREFILL, Phase.DECODE]
    assert page.tokens[first] == 3
    page = it.frame(1.0)
    number, reason, end_ms, tokens, cached, running_ms, first_ms, last_ms = page.ended[first]
    assert (reason, tokens, cached) == ("length", 4, 0)
    assert (running_ms, first_ms, last_ms, end_ms) == pytest.approx((0, 1000, 1300, 1300), abs=1)
    assert page.phases[second] == [Phase.PREFILL]


def test_figures_are_those_of_the_metrics() -> None:
    it = Watched(slots=3, max_waiting=50, blocks=400, **SLOW)
    rng = Random(4)
    for number in range(30):
        it.ask(
            f"r{number}",
            prompt_ids=list(range(rng.randrange(20, 90))),
            max_tokens=rng.randrange(2, 20),
        )
    for _ in range(12):
        figures, metric = it.frame(0.9).figures, it.harness.metric
        assert figures["running"] == metric("num_requests_running")
        assert figures["waiting"] == metric("num_requests_waiting")
        assert figures["generated"] == metric("generation_tokens_total")
        assert figures["cache_usage"] == metric("kv_cache_usage_perc")
        assert figures["hits"] == metric("prefix_cache_hits_total")
        assert figures["length"] == metric("request_success_total", finished_reason="length")
    assert len(it.page.ttft) == metric("time_to_first_token_seconds_count")
    assert len(it.page.itl) == metric("inter_token_latency_seconds_count")


def test_tokens_are_those_that_were_emitted() -> None:
    it = Watched(slots=8, profile=quick_profile())
    for number in range(12):
        it.ask(f"r{number}", prompt_ids=list(range(100 + number)), max_tokens=200)
    for _ in range(8):
        page = it.frame(0.1)
        for name in (f"r{number}" for number in range(12)):
            said = sum(len(event.ids) for event in it.harness.tokens(name))
            assert page.tokens.get(page.number_of(name), 0) == said


def test_steps_are_told_one_by_one_with_what_they_hold() -> None:
    it = Watched(slots=8, profile=quick_profile(max_num_seqs=8))
    for number in range(5):
        it.ask(f"r{number}", prompt_ids=list(range(300)), max_tokens=30)
    for _ in range(20):
        it.frame(0.1)
    page = it.page
    assert sum(row[2] for row in page.steps) == 5 * 300
    assert sum(row[3] for row in page.steps) == 5 * 29
    assert all(
        later[0] >= earlier[0] + earlier[1] - 0.02
        for earlier, later in zip(page.steps, page.steps[1:], strict=False)
    )


def test_a_picture_has_the_steps_from_before_the_page_was_opened() -> None:
    it = Watched(seen=False, slots=8, profile=quick_profile(max_num_seqs=8))
    for number in range(5):
        it.ask(f"r{number}", prompt_ids=list(range(300)), max_tokens=30)
    it.harness.clock.advance(5)
    it.look()
    it.frame(0.1)
    it.page.take(it.observer.picture({}))
    assert sum(row[2] for row in it.page.steps) == 5 * 300
    assert sum(row[3] for row in it.page.steps) == 5 * 29
    before = len(it.page.steps)
    it.ask("late", prompt_ids=list(range(300)), max_tokens=30)
    told = it.frame(1).steps[before:]
    assert sum(row[2] for row in told) == 300, "steps of the picture do not come again"
    picture = Page()
    picture.take(it.observer.picture({}))
    assert picture.steps == it.page.steps


def test_a_picture_says_from_when_on_no_request_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 3)
    it = Watched(slots=8, **SLOW)
    for number in range(5):
        it.ask(f"r{number}", max_tokens=2)
        it.frame(5)
    ends = [row[2] for row in it.page.ended.values()]
    picture = it.observer.picture({})
    assert [row[2] for row in picture.frame.ended] == ends[2:]
    assert picture.since == ends[1]
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 9)
    assert it.observer.picture({}).since == 0
    monkeypatch.setattr(bars, "MAX_ENDED_BYTES", 3 * bars.BAR_BYTES)
    it = Watched(slots=8, **SLOW)
    for number in range(5):
        it.ask(f"r{number}", max_tokens=2)
        it.frame(5)
    picture = it.observer.picture({})
    assert 0 < len(picture.frame.ended) < 5
    assert picture.since == list(it.page.ended.values())[4 - len(picture.frame.ended)][2]


@pytest.mark.parametrize("steps", [False, True])
def test_the_map_of_blocks_is_the_caches(steps: bool) -> None:
    """Prompts that share beginnings, more than the cache holds:

    blocks are shared, cached, evicted.
    """
    profile = quick_profile(max_num_seqs=6) if steps else None
    it = Watched(slots=6, max_waiting=500, blocks=60, profile=profile, inter_token_latency=0.02)
    rng = Random(3)
    for number in range(60):
        group = rng.randrange(4) * 1000
        it.ask(
            f"r{number}",
            prompt_ids=[*range(group, group + 40), number],
            max_tokens=rng.randrange(5, 60),
        )
    page = it.frame(0.05)
    sequence = next(iter(it.harness.engine.sequences()))
    own = [
        block
        for block, (_, owner) in page.blocks.items()
        if page.bars[owner][1] == sequence.request.request_id
    ]
    assert own == sequence.block_numbers()
    seen_states = set()
    for _ in range(120):
        page = it.frame(0.05)
        assert page.states() == it.true_states()
        seen_states |= set(page.states().values())
    assert seen_states == {1, 2, 3}
    assert page.evicted


@pytest.mark.parametrize("steps", [False, True])
def test_a_prefill_that_was_done_elsewhere_is_a_transfer(steps: bool) -> None:
    profile = quick_profile() if steps else None
    it = Watched(slots=2, blocks=100, profile=profile, kv_cache_transfer_latency=2.0)
    it.ask("a", prompt_ids=list(range(60)), remote_prefill=True)
    it.frame(0.5)
    page = it.frame(0.5)
    assert page.phases[page.number_of("a")] == [Phase.TRANSFER]
    page = it.frame(10)
    assert page.ended[page.number_of("a")][1] == "length"


def test_adapters_in_memory_are_told_with_what_runs() -> None:
    it = Watched(slots=4, adapters=("x", "y"), max_loras=1, **SLOW)
    for name in ("x", "x", "y"):
        it.ask(f"of {name}", adapter=name)
    page = it.frame()
    assert page.frame["adapters"] == {"x": 2}
    assert [row[6] for row in page.bars.values()] == ["x", "x", "y"]
    assert it.frame(2).frame["adapters"] == {"y": 1}


def test_a_preempted_sequence_is_seen_so() -> None:
    profile = quick_profile(max_num_seqs=4)
    it = Watched(slots=4, max_waiting=100, blocks=40, profile=profile)
    for number in range(4):
        it.ask(
            f"r{number}", prompt_ids=list(range(number * 100, number * 100 + 60)), max_tokens=100
        )
    for _ in range(200):
        page = it.frame(0.02)
        assert page.states() == it.true_states()
    assert page.figures["preemptions"] > 0
    assert any(Phase.PREEMPTED in phases for phases in page.phases.values())
    assert len(page.ended) == 4


def test_a_picture_and_the_frames_behind_it_tell_what_all_frames_tell() -> None:
    it = Watched(slots=4, max_waiting=100, blocks=80, inter_token_latency=0.05)
    late = Page()
    for number in range(25):
        it.ask(
            f"r{number}",
            prompt_ids=list(range(number % 3 * 50, number % 3 * 50 + 30)),
            max_tokens=20,
        )
    for turn in range(30):
        it.harness.clock.advance(0.1)
        frame = it.observer.frame()
        it.page.take(frame)
        if turn == 9:
            late.take(it.observer.picture({}))
        elif turn > 9:
            late.take(frame)
    assert late.states() == it.page.states()
    live = {number for number in it.page.bars if number not in it.page.ended}
    assert live <= late.bars.keys()
    assert {number: late.tokens.get(number, 0) for number in live} == {
        number: it.page.tokens.get(number, 0) for number in live
    }


def test_who_comes_late_sees_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Watched(seen=False, slots=4, inter_token_latency=0.01)
    it.harness.observers.append(partial(it.observer.bars.watch, Origin("/v1/completions")))
    it.ask("old", prompt_ids=[1, 2], max_tokens=3)
    it.harness.clock.advance(bars.PAST_S)
    it.ask("over", prompt_ids=[1, 2], max_tokens=3)
    it.ask("runs", prompt_ids=[1, 2], max_tokens=400)
    it.harness.clock.advance(1)
    it.observer.start()
    it.frame()
    page = Page()
    page.take(it.observer.picture({}))
    assert [row[1] for row in page.bars.values()] == ["over", "runs"]
    assert [(row[1], row[3]) for row in page.ended.values()] == [("length", 3)]
    it.harness.clock.advance(4)
    it.frame(0.01)
    assert it.page.ended[page.number_of("runs")][1:4:2] == ["length", 400]
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 1)
    later = Page()
    later.take(it.observer.picture({}))
    assert [row[1] for row in later.bars.values()] == ["runs"]


def test_who_comes_back_sees_the_engine_as_it_is() -> None:
    it = Watched(slots=4, blocks=100, inter_token_latency=0.05)
    it.ask("a", prompt_ids=list(range(50)), max_tokens=100)
    it.frame()
    it.observer.stop()
    it.harness.clock.advance(1)
    it.observer.start()
    it.page = page = Page()
    it.observer.frame()
    page.take(it.observer.picture({}))
    assert page.states() == it.true_states()
    assert len(page.bars) == 1


def test_thousands_of_requests_leave_no_more_than_is_allowed() -> None:
    it = Watched(slots=200, max_waiting=2000, inter_token_latency=0.001)
    for number in range(2000):
        it.ask(f"r{number}", prompt_ids=list(range(250)))
        if not number % 400:
            it.frame(0.01)
    page = it.frame(60)
    assert page.figures["length"] == 2000
    assert 0.9 < it.observer.bars.size_bytes / it.observer.bars.limit_bytes <= 1
    assert not list(it.observer.bars.live())


def test_what_has_not_changed_is_left_out() -> None:
    it = Watched(blocks=50)
    it.frame()
    it.harness.clock.advance(0.25)
    told = it.observer.frame()
    assert Frame(at=told.at, figures=told.figures) == told


@pytest.fixture
def it() -> Watched:
    return Watched(seen=False, inter_token_latency=0.01)


def feed_of(it: Watched) -> Feed:
    return Feed(it.observer, lambda: {"model": "test"}, interval_s=0.001)


def kinds(data: bytes) -> list[str]:
    return [
        event.split(b"\n")[0].removeprefix(b"event: ").decode()
        for event in data.split(b"\n\n")
        if event
    ]


def read(box: ClientQueue, least: int) -> list[str]:
    """The kinds of the next events, as many as there must be."""
    events, pieces = list[str](), iter(box)
    while len(events) < least:
        events += kinds(next(pieces))
    return events


def test_the_engine_is_observed_as_long_as_somebody_looks(it: Watched) -> None:
    feed = feed_of(it)
    first, second = feed.open(), feed.open()
    assert read(first, 4)[:4] == ["picture", "frame", "frame", "frame"]
    first.close()
    first.close()
    assert it.observer.is_open
    second.close()
    assert not it.observer.is_open
    gevent.sleep(0.01)
    third = feed.open()
    assert read(third, 2)[0] == "picture"
    feed.close()
    assert len(feed) == 0 and third.gone


def test_a_browser_that_does_not_read_loses_frames_and_gets_the_whole_picture(
    it: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING_EVENTS", 3)
    feed = feed_of(it)
    slow, quick = feed.open(), feed.open()
    pieces = iter(slow)
    next(pieces)
    assert kinds(next(pieces))[0] == "picture"
    read(quick, 60)
    seen = [kind for _ in range(4) for kind in kinds(next(pieces))]
    assert "picture" in seen
    for box in (slow, quick):
        box.close()


def test_a_browser_that_never_reads_is_cut_off(
    it: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING_EVENTS", 3)
    monkeypatch.setattr(feeds, "READ_TIMEOUT_S", 0.02)

    feed, connection = feed_of(it), Mock(spec=["watch", "unwatch", "shut"])
    box = feed.open(connection)
    pieces = iter(box)
    next(pieces)
    next(pieces)
    with gevent.Timeout(5):
        while not connection.shut.called:
            gevent.sleep(0.01)
    assert len(feed) == 0 and not it.observer.is_open


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
