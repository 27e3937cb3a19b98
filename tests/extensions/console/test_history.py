"""A new page gets the figures of the last minutes, also of requests that it does not get itself."""

from functools import partial
from random import Random
from typing import Any

import pytest

from app.extensions.console import bars, history
from app.extensions.console.bars import Origin
from app.extensions.console.frames import FIGURES, EndRow, PastRow
from app.extensions.console.history import STEP_MS, EndedRequest, History, LiveRequest
from tests.extensions.console.watched import WatchedEngine
from tests.extensions.explanation.explained import quick_profile

EXACT = ("running", "waiting", "prompt", "queries", "length", "refused")


def unseen(**options: Any) -> WatchedEngine:
    watched = WatchedEngine(seen=False, **options)
    watched.harness.observers.append(
        partial(watched.observer.bars.watch, Origin("/v1/completions"))
    )
    return watched


def past_of(watched: WatchedEngine) -> list[dict[str, float | None]]:
    watched.observer.start()
    watched.observer.frame()
    rows: list[PastRow] = watched.observer.picture({}).past
    return [dict(zip(("at", *FIGURES), row, strict=True)) for row in rows]


def played(watched: WatchedEngine, seconds: float) -> dict[float, list[float]]:
    """Random requests, and what the engine's figures were at each half second."""
    rng = Random(5)
    seen: dict[float, list[float]] = {}
    for turn in range(int(seconds * 1000 / STEP_MS)):
        watched.harness.clock.advance(0.1)
        for number in range(rng.randrange(3)):
            watched.ask(
                f"r{turn}-{number}",
                prompt_ids=list(range(rng.randrange(5, 90))),
                max_tokens=rng.randrange(2, 60),
            )
        watched.harness.clock.advance(STEP_MS / 1000 - 0.1)
        seen[(turn + 1) * STEP_MS] = watched.observer.frame().figures
    return seen


@pytest.mark.parametrize("shared", [False, True], ids=["requests", "steps"])
def test_historical_figures_equal_the_recorded_figures_of_the_engine(
    shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "MAX_PAST_BARS", 3)
    options: dict[str, Any] = {"time_to_first_token": 0.3, "inter_token_latency": 0.02}
    if shared:
        options = {"profile": quick_profile()}
    watched = unseen(slots=3, max_waiting=1000, blocks=500, **options)
    seen = played(watched, seconds=20)
    past = past_of(watched)
    assert [row["at"] for row in past] == list(seen)[:-1]
    for row in past:
        expected = dict(zip(FIGURES, seen[row["at"] or 0.0], strict=True))
        for name in EXACT:
            assert row[name] == pytest.approx(expected[name]), (name, row["at"])
        assert row["generated"] == pytest.approx(expected["generated"], abs=6)
        assert row["cache_usage"] is None


def test_historical_figures_start_after_the_dropped_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(history, "MAX_REQUESTS", 3)
    watched = unseen(slots=8, inter_token_latency=0.01)
    for number in range(6):
        watched.ask(f"r{number}", max_tokens=2)
        watched.harness.clock.advance(5)
    past = past_of(watched)
    assert past[0]["at"] == pytest.approx(30_000 - len(past) * STEP_MS)
    assert past[0]["length"] == 3
    assert past[-1]["length"] == 6


def test_historical_figures_span_the_last_five_minutes() -> None:
    watched = unseen(slots=8, inter_token_latency=0.01)
    watched.harness.clock.advance(1000)
    past = past_of(watched)
    assert len(past) * STEP_MS == pytest.approx(history.PAST_MS, abs=STEP_MS)


def test_historical_figures_include_requests_whose_texts_were_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bars, "MAX_ENDED_BYTES", 1)
    watched = unseen(slots=8, inter_token_latency=0.01)
    for number in range(20):
        watched.ask(f"r{number}", max_tokens=2)
        watched.harness.clock.advance(1)
    past = past_of(watched)
    assert watched.observer.bars.size_bytes == 0
    assert past[0]["length"] == 1
    assert past[-1]["length"] == 20


def test_completed_requests_are_kept_for_five_minutes() -> None:
    watched = unseen(slots=8, inter_token_latency=0.01)
    watched.ask("old", max_tokens=2)
    watched.harness.clock.advance(200)
    watched.ask("young", max_tokens=2)
    watched.harness.clock.advance(200)
    watched.ask("new", max_tokens=2)
    watched.harness.clock.advance(1)
    ends = watched.observer.bars.recent_ends
    assert ends.size_bytes == 2 * history.REQUEST_BYTES
    assert ends.size_bytes < ends.limit_bytes


def test_console_history_pauses_after_adding_each_request() -> None:
    live = LiveRequest(arrival_ms=0.0, prompt_tokens=5, running_ms=1.0, first_ms=2.0, tokens=9)
    end: EndRow = (1, "length", 900.0, 9, 0, 1.0, 2.0, 900.0)
    ended = EndedRequest(arrival_ms=0.0, prompt_tokens=5, end=end)
    pauses: list[int] = []
    rows = History(dict.fromkeys(FIGURES, 100.0), 0.0, 1000.0)
    rows.add([ended] * 2, [live] * 3, partial(pauses.append, 1))
    assert len(pauses) == 5
