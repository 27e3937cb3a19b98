"""The wheel on a virtual clock: due moments are kept, whatever else happens."""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from app.core.base.clock.timer_wheel import LEAD_S, SLOTS_PER_S, TimerWheel
from app.shared.virtual_clock import VirtualClock

SLOT_S = 1 / SLOTS_PER_S


class Metronome:
    """Takes a turn every `gap_s`, `times` times, and remembers when."""

    def __init__(self, clock: VirtualClock, gap_s: float, times: int) -> None:
        self.clock = clock
        self.gap_s = gap_s
        self.times = times
        self.due_s = clock.now() + gap_s
        self.turns: list[tuple[float, float]] = []
        self.failures: list[Exception] = []

    def run_due(self, now_s: float) -> float | None:
        self.turns.append((self.due_s, now_s))
        self.due_s += self.gap_s
        return self.due_s if len(self.turns) < self.times else None

    def fail(self, error: Exception) -> None:
        self.failures.append(error)


class Broken(Metronome):
    def run_due(self, now_s: float) -> float | None:
        raise ZeroDivisionError


class Hopeless(Broken):
    def fail(self, error: Exception) -> None:
        raise error


@given(gaps=st.lists(st.floats(0.0005, 2.0), min_size=1, max_size=30))
def test_every_timer_fires_within_two_wheel_slots_of_its_due_time(
    gaps: list[float],
) -> None:
    clock = VirtualClock()
    wheel = TimerWheel(clock)
    beats = [Metronome(clock, gap_s, 20) for gap_s in gaps]
    for beat in beats:
        wheel.add(beat.due_s, beat)
    clock.advance(60)
    for beat in beats:
        assert len(beat.turns) == 20
        assert all(-LEAD_S - 1e-9 <= now_s - due_s <= 2 * SLOT_S for due_s, now_s in beat.turns)
    assert len(wheel) == 0


def test_failing_timer_is_reported_without_stopping_other_timers() -> None:
    clock = VirtualClock()
    wheel = TimerWheel(clock)
    broken = Broken(clock, 0.01, 5)
    hopeless = Hopeless(clock, 0.01, 5)
    beat = Metronome(clock, 0.01, 5)
    for item in (broken, hopeless, beat):
        wheel.add(item.due_s, item)
    clock.advance(1)
    assert len(beat.turns) == 5
    assert [type(error) for error in broken.failures] == [ZeroDivisionError]


class Recording(VirtualClock):
    """Remembers for when its alarm was set."""

    set_for = 0.0

    def ring_at(self, moment_s: float, alarm: Callable[[], None]) -> None:
        self.set_for = moment_s


@given(due_s=st.floats(0, 1e8))
def test_timer_is_due_whenever_the_alarm_that_was_set_for_it_fires(due_s: float) -> None:
    """Were a slot not yet due at its own moment, because of rounding, the alarm would ring on and
    on.
    """
    clock = Recording()
    wheel = TimerWheel(clock)
    beat = Metronome(clock, 1.0, 1)
    wheel.add(due_s, beat)
    clock.advance(clock.set_for)
    wheel.ring()
    assert len(beat.turns) == 1


class Slow(Metronome):
    """Each of its turns takes a millisecond."""

    def run_due(self, now_s: float) -> float | None:
        self.clock._now += 0.001
        return super().run_due(now_s)


def test_timers_left_at_the_time_limit_fire_in_the_next_pass() -> None:
    clock = Recording()
    wheel = TimerWheel(clock)
    beats = [Slow(clock, 0.01, 1) for _ in range(12)]
    for beat in beats:
        wheel.add(beat.due_s, beat)
    clock.advance(0.011)
    done = []
    while len(wheel):
        wheel.ring()
        done.append(sum(len(beat.turns) for beat in beats))
    assert done == [5, 10, 12]
    assert [beat.turns[0][1] for beat in beats] == sorted(beat.turns[0][1] for beat in beats)


def test_functions_passed_to_call_soon_run_once_even_if_one_raises() -> None:
    clock = VirtualClock()
    wheel = TimerWheel(clock)
    done: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    wheel.call_soon(partial(done.append, 1))
    wheel.call_soon(fail)
    wheel.call_soon(partial(done.append, 2))
    assert done == []
    clock.advance(1)
    assert done == [1, 2] and len(wheel) == 0


def test_rescheduled_timers_fire_even_if_a_pass_exceeds_its_time_limit() -> None:
    clock = Recording()
    wheel = TimerWheel(clock)
    beats = [Slow(clock, 0.01, 2) for _ in range(12)]
    for beat in beats:
        wheel.add(beat.due_s, beat)
        beat.gap_s = 0.0001  # the second turn is due in the slot of the first
    clock.advance(0.011)
    while len(wheel):
        wheel.ring()
    assert [len(beat.turns) for beat in beats] == [2] * 12
