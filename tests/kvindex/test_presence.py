"""Which pods are still there."""

from __future__ import annotations

from app.kvindex.pods import Presence


def test_a_pod_is_gone_some_time_after_its_connection() -> None:
    presence = Presence(30)
    presence.seen("a", 1, 0)
    presence.seen("b", 2, 0)
    presence.closed(1, 100)
    assert presence.step(129) == []
    assert presence.step(130) == ["a"]
    assert presence.step(1e9) == []


def test_a_pod_that_is_heard_again_elsewhere_is_there() -> None:
    presence = Presence(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.seen("a", 2, 110)
    assert presence.step(1e9) == []
    presence.closed(1, 120)
    assert presence.step(1e9) == []


def test_what_was_sent_before_the_end_does_not_bring_a_pod_back() -> None:
    presence = Presence(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.seen("a", 1, 105)
    presence.seen("late", 1, 110)
    assert presence.step(130) == ["a"]
    assert presence.step(140) == ["late"]


def test_a_connection_that_comes_back_in_time_keeps_its_pods() -> None:
    presence = Presence(30)
    presence.seen("a", "target", 0)
    presence.closed("target", 100)
    presence.opened("target")
    assert presence.step(1e9) == []
    presence.closed("target", 2e9)
    assert presence.step(3e9) == ["a"]


def test_a_number_that_is_given_again_is_another_connection() -> None:
    presence = Presence(30)
    presence.seen("a", 1, 0)
    presence.closed(1, 100)
    presence.replaced(1)
    presence.seen("b", 1, 101)
    assert presence.step(1e9) == ["a"]
    presence.closed(1, 2e9)
    assert presence.step(3e9) == ["b"]


def test_only_so_many_pods_are_followed() -> None:
    presence = Presence(30, most_pods=2)
    for pod in ("a", "b", "c"):
        presence.seen(pod, 1, 0)
    presence.closed(1, 0)
    assert sorted(presence.step(30)) == ["a", "b"]
