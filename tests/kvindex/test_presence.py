"""Which pods are still there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.pods import PodTracker


def test_a_pod_is_gone_some_time_after_its_connection() -> None:
    presence = PodTracker(30)
    presence.seen("a", 1, 0)
    presence.seen("b", 2, 0)
    presence.closed(1, 100)
    assert presence.step(129) == []
    assert presence.step(130) == ["a"]
    assert presence.step(1e9) == []


def test_a_pod_that_is_heard_again_elsewhere_is_there() -> None:
    presence = PodTracker(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.seen("a", 2, 110)
    assert presence.step(1e9) == []
    presence.closed(1, 120)
    assert presence.step(1e9) == []


def test_what_was_sent_before_the_end_does_not_bring_a_pod_back() -> None:
    presence = PodTracker(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.seen("a", 1, 105)
    presence.seen("late", 1, 110)
    assert presence.step(130) == ["a"]
    assert presence.step(140) == ["late"]


def test_a_connection_that_comes_back_in_time_keeps_its_pods() -> None:
    presence = PodTracker(30)
    presence.seen("a", "target", 0)
    presence.closed("target", 100)
    presence.opened("target")
    assert presence.step(1e9) == []
    presence.closed("target", 2e9)
    assert presence.step(3e9) == ["a"]


def test_a_number_that_is_given_again_is_another_connection() -> None:
    presence = PodTracker(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.replaced(1)
    presence.seen("b", 1, 101)
    assert presence.step(1e9) == ["a"]
    presence.closed(1, 2e9)
    assert presence.step(3e9) == ["b"]


def test_only_so_many_pods_are_followed() -> None:
    presence = PodTracker(30, most_pods=2)
    for pod in ("a", "b", "c"):
        presence.seen(pod, 1, 0)
    presence.closed(1, 0)
    assert sorted(presence.step(30)) == ["a", "b"]


def test_only_some_pods_at_a_time_are_found_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.pods.MOST_A_STEP", 2)
    presence = PodTracker(30)
    for pod in "abc":
        presence.seen(pod, 1, 0)
    presence.closed(1, 0)
    gone = [presence.step(30) for _ in range(3)]
    assert list(map(len, gone)) == [2, 1, 0] and sorted(sum(gone, [])) == ["a", "b", "c"]


class Diary:
    """What `PodTracker` should know, in the plainest words: pod -> connection, and when it will be gone."""

    def __init__(self, grace_s: float, most: int) -> None:
        self.grace_s, self.most = grace_s, most
        self.heard_on: dict[str, int | None] = {}
        self.closed: set[int] = set()
        self.due: dict[str, float] = {}

    def on(self, connection: int) -> list[str]:
        return [pod for pod, other in self.heard_on.items() if other == connection]

    def write(self, what: str, pod: str, connection: int, now: float) -> None:
        match what:
            case "seen" if pod in self.heard_on or len(self.heard_on) < self.most:
                self.heard_on[pod] = connection
                if connection in self.closed:
                    self.due.setdefault(pod, now + self.grace_s)
                else:
                    self.due.pop(pod, None)
            case "closed":
                self.closed.add(connection)
                self.due |= {each: now + self.grace_s for each in self.on(connection) if each not in self.due}
            case "opened":
                self.closed.discard(connection)
                for each in self.on(connection):
                    self.due.pop(each, None)
            case "replaced":
                self.closed.discard(connection)
                self.heard_on |= dict.fromkeys(self.on(connection))
            case "forget":
                self.strike(pod)

    def strike(self, pod: str) -> None:
        self.heard_on.pop(pod, None)
        self.due.pop(pod, None)

    def gone(self, now: float) -> set[str]:
        return {pod for pod, due in self.due.items() if due <= now}


whats = st.sampled_from(["seen", "seen", "seen", "closed", "opened", "replaced", "forget"])


@given(st.lists(st.tuples(whats, st.sampled_from("abcd"), st.integers(1, 3), st.integers(0, 9)), max_size=40))
def test_whatever_connections_do_it_is_known_who_is_there(history: list[tuple[str, str, int, int]]) -> None:
    presence, diary, now = PodTracker(10, most_pods=3), Diary(10, 3), 0
    for what, pod, connection, later in history:
        now += later
        match what:
            case "seen":
                presence.seen(pod, connection, now)
            case "closed":
                presence.closed(connection, now)
            case "opened":
                presence.opened(connection)
            case "replaced":
                presence.replaced(connection)
            case _:
                presence.forget(pod)
        diary.write(what, pod, connection, now)
        gone = diary.gone(now)
        assert set(presence.step(now)) == gone
        for each in gone:
            diary.strike(each)
        assert presence._pods == {number: set(pods) for number in (1, 2, 3) if (pods := diary.on(number))}
