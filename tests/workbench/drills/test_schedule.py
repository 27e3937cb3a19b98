"""Steps of a drill: their order and times, ranks that wait, phases, and the player."""

from functools import partial

import msgspec
import pytest

from workbench.drills.drill_file import Drill
from workbench.drills.schedule import Player, Step, phases_of, steps_of


def drill_of(*failures: dict[str, object], **fields: object) -> Drill:
    return msgspec.convert({"duration": "60s", **fields, "failures": failures}, Drill)


def brief(drill: Drill) -> list[tuple[float, int, str]]:
    return [(step.time_s, step.pod, step.verb) for step in steps_of(drill)]


def test_failures_start_and_end_halfway_between_two_requests() -> None:
    stop = {"action": "stop", "at": "10s", "for": "5s", "pod": 1}
    assert brief(drill_of(stop)) == [(10.5, 1, "stop"), (15.5, 1, "proceed")]
    assert brief(drill_of(stop, rate=4)) == [(10.125, 1, "stop"), (15.125, 1, "proceed")]
    uneven = {"action": "stop", "at": "10300ms", "for": "5s", "pod": 1}
    assert brief(drill_of(uneven, rate=10))[0] == (pytest.approx(10.35), 1, "stop")


def test_flap_action_causes_several_outages() -> None:
    flap = {"action": "flap", "at": "10s", "pod": 0, "times": 2, "down": "2s", "up": "3s"}
    assert brief(drill_of(flap)) == [
        (10.5, 0, "close"),
        (12.5, 0, "open"),
        (15.5, 0, "close"),
        (17.5, 0, "open"),
    ]


def test_restart_action_kills_only_a_running_pod() -> None:
    kill = {"action": "kill", "at": "5s", "pod": 0}
    restart = {"action": "restart", "at": "10s", "start-up": "4s", "pod": 0}
    alone = [(10.5, 0, "kill"), (10.5, 0, "start"), (14.5, 0, "admit")]
    assert brief(drill_of(restart)) == alone
    assert brief(drill_of(kill, restart)) == [(5.5, 0, "kill"), *alone[1:]]


def test_peers_of_a_dead_rank_are_stuck_until_it_returns() -> None:
    kill = {"action": "kill", "at": "5s", "pod": 0}
    restart = {"action": "restart", "at": "10s", "start-up": "4s", "pod": 0}
    steps = steps_of(drill_of(kill, restart, **{"expert-parallel": [[0, 1, 2]]}))
    stuck = [step for step in steps if step.pod != 0]
    assert stuck == [
        Step(5.5, 1, "stick", 0),
        Step(5.5, 2, "stick", 0),
        Step(14.5, 1, "release", 0),
        Step(14.5, 2, "release", 0),
    ]


def test_slow_rank_slows_its_peers_but_a_partition_does_not() -> None:
    groups = {"expert-parallel": [[0, 1]]}
    slow = {"action": "slow", "at": "5s", "for": "2s", "delay": "3s", "pod": 0}
    assert Step(5.5, 1, "slow", cause=0, delay_s=3.0) in steps_of(drill_of(slow, **groups))
    partition = {"action": "partition", "at": "5s", "for": "2s", "pod": 0}
    assert {step.pod for step in steps_of(drill_of(partition, **groups))} == {0}


def test_phase_is_named_after_the_active_or_last_ended_failures() -> None:
    stop = {"action": "stop", "at": "10s", "for": "10s", "pod": 0}
    stuck = {"action": "stuck", "at": "15s", "for": "10s", "pod": 1}
    kill = {"action": "kill", "at": "40s", "pod": 2}
    restart = {"action": "restart", "at": "45s", "start-up": "5s", "pod": 2}
    phases = phases_of(drill_of(stop, stuck, kill, restart))
    assert [(phase.name, phase.start_s) for phase in phases] == [
        ("before", 0.0),
        ("stop 0", 10.5),
        ("stop 0 + stuck 1", 15.5),
        ("stuck 1", 20.5),
        ("after stuck 1", 25.5),
        ("kill 2", 40.5),
        ("restart 2", 45.5),
        ("after restart 2", 50.5),
    ]
    assert [phase.end_s for phase in phases] == [
        *(phase.start_s for phase in phases[1:]),
        60.0,
    ]


class RecordedPod:
    """Notes its failures."""

    def __init__(self, name: int, calls: list[tuple[object, ...]], clock: list[float]) -> None:
        self._name = name
        self._calls = calls
        self._clock = clock

    def __getattr__(self, verb: str) -> object:
        def note(*arguments: float) -> None:
            self._calls.append((self._clock[0], self._name, verb, *arguments))

        return note


def test_drill_player_executes_each_step_at_the_scheduled_time() -> None:
    clock = [0.0]
    calls: list[tuple[object, ...]] = []

    def sleep_until(time_s: float) -> None:
        clock[0] = max(clock[0], time_s)

    drill = drill_of(
        {"action": "kill", "at": "5s", "pod": 0},
        {"action": "slow", "at": "7s", "for": "2s", "delay": "3s", "pod": 1},
        **{"expert-parallel": [[0, 2]]},
    )
    pods = [RecordedPod(number, calls, clock) for number in range(3)]
    player = Player(
        steps_of(drill),
        pods,  # type: ignore[arg-type]
        now=partial(clock.__getitem__, 0),
        sleep_until=sleep_until,
    )
    player.play()
    assert calls == [
        (5.5, 0, "kill"),
        (5.5, 2, "stick", 0),
        (7.5, 1, "slow", 1, 3.0),
        (9.5, 1, "speed_up", 1),
    ]
    assert all(played.begin_late_s == 0 for played in player.played)
