"""What an operator does to an engine in a process of its own: the commands, and what is known afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import gevent
import pytest
from gevent.event import Event

from app.engine.core.errors import CallerLeft, CommandFailed
from app.engine.core.remote import RemoteLifecycle
from app.engine.core.wire import Answer
from tests.engine.played_engine import DEADLINE_S, Worker, until, worker

T = TypeVar("T")
STATES = ("awake", "weights_offloaded", "discard_all")
DURATION = "sleep_mode_operation_duration_seconds"


class Operated:
    """An engine that is played, and who operates it."""

    def __init__(self, play: Worker) -> None:
        self.play = play
        self.life = RemoteLifecycle(play.engine)
        self.left = Event()

    def does(self, act: Callable[[], T], value: bool | None = True, error: str | None = None) -> T:
        """What `act` gives when the engine answers so."""
        before = len(self.play.commands)
        acting = gevent.spawn(act)
        until(lambda: len(self.play.commands) > before)
        self.play.peer.say(Answer(number=self.play.commands[-1].number, value=value, error=error))
        return acting.get(timeout=DEADLINE_S)

    def falls_asleep(self, level: int) -> None:
        self.does(lambda: self.life.sleep(level, "abort", self.left))

    @property
    def told(self) -> tuple[object, ...]:
        """The last command, as the engine got it."""
        command = self.play.commands[-1]
        return command.name, command.level, command.tags, command.mode

    @property
    def stands(self) -> tuple[bool, bool]:
        return self.life.is_sleeping, self.life.paused

    @property
    def state(self) -> tuple[float, ...]:
        return tuple(self.play.metric("engine_sleep_state", f'"{state}"') for state in STATES)

    def times(self, operation: str) -> tuple[float, float]:
        """How often it was done, and for how many seconds."""
        label = f'operation="{operation}"'
        return self.play.metric(f"{DURATION}_count", label), self.play.metric(f"{DURATION}_sum", label)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    with worker(tmp_path) as play:
        yield Operated(play)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_of_sleep_are_told_and_end(operated: Operated, level: int) -> None:
    operated.falls_asleep(level)
    assert operated.told == ("sleep", level, None, "abort") and operated.stands == (True, True)
    assert operated.state == tuple(float(it == level) for it in range(3))
    operated.does(lambda: operated.life.wake_up(None))
    assert operated.told[:3] == ("wake_up", 0, None) and operated.stands == (False, False)
    assert operated.state == (1, 0, 0)
    assert operated.times("sleep") == operated.times("wake") == (1, 0)


def test_parts_wake_one_by_one_and_the_engine_says_when_all_is_back(operated: Operated) -> None:
    operated.falls_asleep(1)
    assert not operated.does(lambda: operated.life.wake_up(["weights"]), value=False)
    assert operated.told[:3] == ("wake_up", 0, ("weights",)) and operated.stands == (True, True)
    assert operated.state == (0, 1, 0)
    assert operated.does(lambda: operated.life.wake_up(["kv_cache"]))
    assert operated.stands == (False, False) and operated.state == (1, 0, 0)


def test_what_the_engine_will_not_do_is_told_and_changes_nothing(operated: Operated) -> None:
    with pytest.raises(CommandFailed, match="Not now"):
        operated.does(lambda: operated.life.pause("keep", operated.left), None, "Not now.")
    with pytest.raises(CommandFailed):
        operated.life.release_cache()
    assert operated.stands == (False, False)


def test_a_caller_who_leaves_awaits_nothing(operated: Operated) -> None:
    acting = gevent.spawn(operated.life.pause, "wait", operated.left)
    until(lambda: operated.play.commands)
    operated.left.set()
    with pytest.raises(CallerLeft):
        acting.get(timeout=DEADLINE_S)
    assert operated.stands == (False, False)
