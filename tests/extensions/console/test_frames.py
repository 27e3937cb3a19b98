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
from tests.extensions.console.watched import Page, WatchedEngine
from tests.extensions.explanation.explained import quick_profile

SLOW = {"time_to_first_token": 1.0, "inter_token_latency": 0.1}


def test_request_is_drawn_as_a_bar_from_its_arrival_to_its_end() -> None:
    watched = WatchedEngine(slots=1, **SLOW)
    watched.ask("a", prompt_ids=[1, 2, 3], max_tokens=4)
    watched.ask("b", max_tokens=4)
    page = watched.frame()
    first = page.number_of("a")
    second = page.number_of("b")
    assert page.bars[first][1:5] == ["a", 0, 3, 4]
    assert page.phases[first] == [Phase.PREFILL]
    assert second not in page.phases
    page = watched.frame(1.0)
    assert page.phases[first] == [Phase.PREFILL, Phase.DECODE]
    assert page.tokens[first] == 3
    page = watched.frame(1.0)
    number, reason, end_ms, tokens, cached, running_ms, first_ms, last_ms = page.ended[first]
    assert (reason, tokens, cached) == ("length", 4, 0)
    assert (running_ms, first_ms, last_ms, end_ms) == pytest.approx((0, 1000, 1300, 1300), abs=1)
    assert page.phases[second] == [Phase.PREFILL]


def test_figures_of_a_console_update_equal_the_metrics() -> None:
    watched = WatchedEngine(slots=3, max_waiting=50, blocks=400, **SLOW)
    rng = Random(4)
    for number in range(30):
        watched.ask(
            f"r{number}",
            prompt_ids=list(range(rng.randrange(20, 90))),
            max_tokens=rng.randrange(2, 20),
        )
    for _ in range(12):
        figures = watched.frame(0.9).figures
        metric = watched.harness.metric
        assert figures["running"] == metric("num_requests_running")
        assert figures["waiting"] == metric("num_requests_waiting")
        assert figures["generated"] == metric("generation_tokens_total")
        assert figures["cache_usage"] == metric("kv_cache_usage_perc")
        assert figures["hits"] == metric("prefix_cache_hits_total")
        assert figures["length"] == metric("request_success_total", finished_reason="length")
    assert len(watched.page.ttft) == metric("time_to_first_token_seconds_count")
    assert len(watched.page.itl) == metric("inter_token_latency_seconds_count")


def test_token_counts_of_bars_equal_the_emitted_tokens() -> None:
    watched = WatchedEngine(slots=8, profile=quick_profile())
    for number in range(12):
        watched.ask(f"r{number}", prompt_ids=list(range(100 + number)), max_tokens=200)
    for _ in range(8):
        page = watched.frame(0.1)
        for name in (f"r{number}" for number in range(12)):
            emitted_tokens = sum(len(event.ids) for event in watched.harness.tokens(name))
            assert page.tokens.get(page.number_of(name), 0) == emitted_tokens


def test_each_step_is_sent_once_with_its_token_counts() -> None:
    watched = WatchedEngine(slots=8, profile=quick_profile(max_num_seqs=8))
    for number in range(5):
        watched.ask(f"r{number}", prompt_ids=list(range(300)), max_tokens=30)
    for _ in range(20):
        watched.frame(0.1)
    page = watched.page
    assert sum(row[2] for row in page.steps) == 5 * 300
    assert sum(row[3] for row in page.steps) == 5 * 29
    assert all(
        later[0] >= earlier[0] + earlier[1] - 0.02
        for earlier, later in zip(page.steps, page.steps[1:], strict=False)
    )


def test_snapshot_contains_steps_from_before_the_page_was_opened() -> None:
    watched = WatchedEngine(seen=False, slots=8, profile=quick_profile(max_num_seqs=8))
    for number in range(5):
        watched.ask(f"r{number}", prompt_ids=list(range(300)), max_tokens=30)
    watched.harness.clock.advance(5)
    watched.look()
    watched.frame(0.1)
    watched.page.take(watched.observer.picture({}))
    assert sum(row[2] for row in watched.page.steps) == 5 * 300
    assert sum(row[3] for row in watched.page.steps) == 5 * 29
    step_count = len(watched.page.steps)
    watched.ask("late", prompt_ids=list(range(300)), max_tokens=30)
    new_steps = watched.frame(1).steps[step_count:]
    assert sum(row[2] for row in new_steps) == 300, "steps of the picture do not come again"
    picture = Page()
    picture.take(watched.observer.picture({}))
    assert picture.steps == watched.page.steps


def test_snapshot_states_the_end_time_of_the_last_dropped_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 3)
    watched = WatchedEngine(slots=8, **SLOW)
    for number in range(5):
        watched.ask(f"r{number}", max_tokens=2)
        watched.frame(5)
    ends = [row[2] for row in watched.page.ended.values()]
    picture = watched.observer.picture({})
    assert [row[2] for row in picture.frame.ended] == ends[2:]
    assert picture.since == ends[1]
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 9)
    assert watched.observer.picture({}).since == 0
    monkeypatch.setattr(bars, "MAX_ENDED_BYTES", 3 * bars.BAR_BYTES)
    watched = WatchedEngine(slots=8, **SLOW)
    for number in range(5):
        watched.ask(f"r{number}", max_tokens=2)
        watched.frame(5)
    picture = watched.observer.picture({})
    assert 0 < len(picture.frame.ended) < 5
    assert picture.since == list(watched.page.ended.values())[4 - len(picture.frame.ended)][2]


@pytest.mark.parametrize("steps", [False, True])
def test_block_map_equals_the_state_of_the_cache(steps: bool) -> None:
    """Prompts that share beginnings, more than the cache holds:

    blocks are shared, cached, evicted.
    """
    profile = quick_profile(max_num_seqs=6) if steps else None
    watched = WatchedEngine(
        slots=6, max_waiting=500, blocks=60, profile=profile, inter_token_latency=0.02
    )
    rng = Random(3)
    for number in range(60):
        group = rng.randrange(4) * 1000
        watched.ask(
            f"r{number}",
            prompt_ids=[*range(group, group + 40), number],
            max_tokens=rng.randrange(5, 60),
        )
    page = watched.frame(0.05)
    sequence = next(iter(watched.harness.engine.sequences()))
    owned_blocks = [
        block
        for block, (_, owner) in page.blocks.items()
        if page.bars[owner][1] == sequence.request.request_id
    ]
    assert owned_blocks == sequence.block_numbers()
    seen_states = set()
    for _ in range(120):
        page = watched.frame(0.05)
        assert page.states() == watched.true_states()
        seen_states |= set(page.states().values())
    assert seen_states == {1, 2, 3}
    assert page.evicted


@pytest.mark.parametrize("steps", [False, True])
def test_remote_prefill_is_shown_as_a_transfer(steps: bool) -> None:
    profile = quick_profile() if steps else None
    watched = WatchedEngine(slots=2, blocks=100, profile=profile, kv_cache_transfer_latency=2.0)
    watched.ask("a", prompt_ids=list(range(60)), remote_prefill=True)
    watched.frame(0.5)
    page = watched.frame(0.5)
    assert page.phases[page.number_of("a")] == [Phase.TRANSFER]
    page = watched.frame(10)
    assert page.ended[page.number_of("a")][1] == "length"


def test_console_updates_count_running_requests_per_adapter() -> None:
    watched = WatchedEngine(slots=4, adapters=("x", "y"), max_loras=1, **SLOW)
    for name in ("x", "x", "y"):
        watched.ask(f"of {name}", adapter=name)
    page = watched.frame()
    assert page.frame["adapters"] == {"x": 2}
    assert [row[6] for row in page.bars.values()] == ["x", "x", "y"]
    assert watched.frame(2).frame["adapters"] == {"y": 1}


def test_preempted_sequence_is_shown_as_preempted() -> None:
    profile = quick_profile(max_num_seqs=4)
    watched = WatchedEngine(slots=4, max_waiting=100, blocks=40, profile=profile)
    for number in range(4):
        watched.ask(
            f"r{number}", prompt_ids=list(range(number * 100, number * 100 + 60)), max_tokens=100
        )
    for _ in range(200):
        page = watched.frame(0.02)
        assert page.states() == watched.true_states()
    assert page.figures["preemptions"] > 0
    assert any(Phase.PREEMPTED in phases for phases in page.phases.values())
    assert len(page.ended) == 4


def test_snapshot_and_later_updates_give_the_complete_console_state() -> None:
    watched = WatchedEngine(slots=4, max_waiting=100, blocks=80, inter_token_latency=0.05)
    late = Page()
    for number in range(25):
        watched.ask(
            f"r{number}",
            prompt_ids=list(range(number % 3 * 50, number % 3 * 50 + 30)),
            max_tokens=20,
        )
    for turn in range(30):
        watched.harness.clock.advance(0.1)
        frame = watched.observer.frame()
        watched.page.take(frame)
        if turn == 9:
            late.take(watched.observer.picture({}))
        elif turn > 9:
            late.take(frame)
    assert late.states() == watched.page.states()
    live = {number for number in watched.page.bars if number not in watched.page.ended}
    assert live <= late.bars.keys()
    assert {number: late.tokens.get(number, 0) for number in live} == {
        number: watched.page.tokens.get(number, 0) for number in live
    }


def test_page_opened_later_receives_recently_completed_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = WatchedEngine(seen=False, slots=4, inter_token_latency=0.01)
    watched.harness.observers.append(
        partial(watched.observer.bars.watch, Origin("/v1/completions"))
    )
    watched.ask("old", prompt_ids=[1, 2], max_tokens=3)
    watched.harness.clock.advance(bars.PAST_S)
    watched.ask("over", prompt_ids=[1, 2], max_tokens=3)
    watched.ask("runs", prompt_ids=[1, 2], max_tokens=400)
    watched.harness.clock.advance(1)
    watched.observer.start()
    watched.frame()
    page = Page()
    page.take(watched.observer.picture({}))
    assert [row[1] for row in page.bars.values()] == ["over", "runs"]
    assert [(row[1], row[3]) for row in page.ended.values()] == [("length", 3)]
    watched.harness.clock.advance(4)
    watched.frame(0.01)
    assert watched.page.ended[page.number_of("runs")][1:4:2] == ["length", 400]
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 1)
    later = Page()
    later.take(watched.observer.picture({}))
    assert [row[1] for row in later.bars.values()] == ["runs"]


def test_console_opened_again_shows_the_current_state_of_the_engine() -> None:
    watched = WatchedEngine(slots=4, blocks=100, inter_token_latency=0.05)
    watched.ask("a", prompt_ids=list(range(50)), max_tokens=100)
    watched.frame()
    watched.observer.stop()
    watched.harness.clock.advance(1)
    watched.observer.start()
    watched.page = page = Page()
    watched.observer.frame()
    page.take(watched.observer.picture({}))
    assert page.states() == watched.true_states()
    assert len(page.bars) == 1


def test_bars_of_thousands_of_requests_stay_within_the_memory_limit() -> None:
    watched = WatchedEngine(slots=200, max_waiting=2000, inter_token_latency=0.001)
    for number in range(2000):
        watched.ask(f"r{number}", prompt_ids=list(range(4000)))
        if not number % 400:
            watched.frame(0.01)
    page = watched.frame(60)
    assert page.figures["length"] == 2000
    assert 0.9 < watched.observer.bars.size_bytes / watched.observer.bars.limit_bytes <= 1
    assert not list(watched.observer.bars.live())


def test_console_update_omits_unchanged_parts() -> None:
    watched = WatchedEngine(blocks=50)
    watched.frame()
    watched.harness.clock.advance(0.25)
    frame = watched.observer.frame()
    assert Frame(at=frame.at, figures=frame.figures) == frame


@pytest.fixture
def watched() -> WatchedEngine:
    return WatchedEngine(seen=False, inter_token_latency=0.01)


def server_description() -> dict[str, str]:
    return {"model": "test"}


def feed_of(watched: WatchedEngine) -> Feed:
    return Feed(watched.observer, server_description, interval_s=0.001)


def kinds(data: bytes) -> list[str]:
    return [
        event.split(b"\n")[0].removeprefix(b"event: ").decode()
        for event in data.split(b"\n\n")
        if event
    ]


def read(box: ClientQueue, min_events: int) -> list[str]:
    """The kinds of the next events, as many as there must be."""
    events = list[str]()
    pieces = iter(box)
    while len(events) < min_events:
        events += kinds(next(pieces))
    return events


def test_engine_is_observed_only_while_a_page_is_open(watched: WatchedEngine) -> None:
    feed = feed_of(watched)
    first = feed.open()
    second = feed.open()
    assert read(first, 4)[:4] == ["picture", "frame", "frame", "frame"]
    first.close()
    first.close()
    assert watched.observer.is_open
    second.close()
    assert not watched.observer.is_open
    gevent.sleep(0.01)
    third = feed.open()
    assert read(third, 2)[0] == "picture"
    feed.close()
    assert len(feed) == 0 and third.gone


def test_slow_browser_receives_a_new_snapshot_after_missed_updates(
    watched: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING_EVENTS", 3)
    feed = feed_of(watched)
    slow = feed.open()
    quick = feed.open()
    pieces = iter(slow)
    next(pieces)
    assert kinds(next(pieces))[0] == "picture"
    read(quick, 60)
    seen = [kind for _ in range(4) for kind in kinds(next(pieces))]
    assert "picture" in seen
    for box in (slow, quick):
        box.close()


def test_browser_that_never_reads_is_disconnected(
    watched: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING_EVENTS", 3)
    monkeypatch.setattr(feeds, "READ_TIMEOUT_S", 0.02)

    feed = feed_of(watched)
    connection = Mock(spec=["watch", "unwatch", "shut"])
    box = feed.open(connection)
    pieces = iter(box)
    next(pieces)
    next(pieces)
    with gevent.Timeout(5):
        while not connection.shut.called:
            gevent.sleep(0.01)
    assert len(feed) == 0 and not watched.observer.is_open


def test_error_in_a_console_update_ends_only_the_console_streams(
    watched: WatchedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("broken on purpose")

    feed = feed_of(watched)
    box = feed.open()
    monkeypatch.setattr(watched.observer, "frame", broken)
    with gevent.Timeout(5):
        while not box.gone:
            gevent.sleep(0.001)
    assert not watched.observer.is_open
