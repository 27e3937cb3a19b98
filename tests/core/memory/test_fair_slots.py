"""Bounded queues in front of work that only a few requests may do."""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from app.core.base.callers import CallerConnection, current_caller
from app.core.base.fair_slots import FairSlots
from app.core.base.overload import ClientLeftError, NoWaitError, SlotsBusyError
from app.core.base.request_memory import Claim


class Connection:
    """A connection whose client can leave."""

    def __init__(self) -> None:
        self.is_closed_by_client = False
        self._gone: Callable[[], None] | None = None

    def watch(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def unwatch(self) -> None:
        self._gone = None

    @property
    def is_watched(self) -> bool:
        return self._gone is not None

    def leave(self) -> None:
        """Calls what waits for the end of the client, in the hub."""
        self.is_closed_by_client = True
        gone = self._gone
        if gone is not None:
            gevent.get_hub().loop.run_callback(gone)


class Request:
    """A request of the client with an address."""

    def __init__(self, client: str, connection: Connection | None = None) -> None:
        self.client = client
        self.connection: CallerConnection | None = connection

    @property
    def claim(self) -> Claim | None:
        return None


class Desk:
    """Does the work of requests, one at a time, when `proceed` is set."""

    def __init__(self, max_waiting: int = 100) -> None:
        self.slots = FairSlots(1, max_waiting)
        self.served: list[str] = []
        self.errors: list[str] = []
        self.proceed = Event()

    def submit(self, name: str, request: Request | None) -> None:
        gevent.spawn(self._work, name, request)
        gevent.sleep(0)

    def _work(self, name: str, request: Request | None) -> None:
        current_caller.set(request)
        try:
            with self.slots:
                self.proceed.wait(10)
                self.served.append(name)
        except (SlotsBusyError, ClientLeftError) as error:
            self.errors.append(f"{name} {type(error).__name__}")

    def finish(self) -> list[str]:
        """Lets all work proceed, and returns its order."""
        self.proceed.set()
        for _ in range(200):
            gevent.sleep(0)
        return self.served


def test_clients_take_turns_whatever_number_of_requests_each_has() -> None:
    desk = Desk()
    for number in range(4):
        desk.submit(f"a{number}", Request("a"))
    desk.submit("b0", Request("b"))
    desk.submit("none", None)
    desk.submit("b1", Request("b"))
    assert desk.finish() == ["a0", "a1", "b0", "none", "a2", "b1", "a3"]
    assert not desk.slots._waiting and desk.slots._free == 1


def test_one_client_gets_half_of_the_waiting_places_and_all_clients_get_no_more_than_all() -> None:
    desk = Desk(max_waiting=4)
    desk.submit("first", Request("x"))
    for number in range(3):
        desk.submit(f"a{number}", Request("a"))
    for client in ("b", "c", "d"):
        desk.submit(client, Request(client))
    assert desk.errors == ["a2 SlotsBusyError", "d SlotsBusyError"]
    assert desk.finish() == ["first", "a0", "b", "c", "a1"]


def test_client_that_leaves_loses_its_place() -> None:
    desk = Desk()
    left = Connection()
    desk.submit("first", None)
    desk.submit("left", Request("a", left))
    desk.submit("stays", Request("a", stays := Connection()))
    assert left.is_watched
    left.leave()
    gevent.sleep(0.01)
    assert desk.errors == ["left ClientLeftError"]
    assert not left.is_watched
    assert desk.finish() == ["first", "stays"]
    assert not stays.is_watched and not desk.slots._waiting


def test_request_of_a_client_that_has_left_does_not_begin() -> None:
    desk = Desk()
    connection = Connection()
    connection.leave()
    desk.submit("left", Request("a", connection))
    assert desk.errors == ["left ClientLeftError"]
    desk.submit("next", None)
    assert desk.finish() == ["next"]


def test_slot_granted_in_the_moment_of_an_error_is_passed_on() -> None:
    slots = FairSlots(1)
    served: list[str] = []

    def work(name: str) -> None:
        with slots:
            served.append(name)
            gevent.sleep(0)

    with slots:
        killed = gevent.spawn(work, "killed")
        following = gevent.spawn(work, "next")
        gevent.sleep(0)
    killed.kill(block=False)
    following.join(5)
    assert served[-1] == "next"
    assert not slots._waiting and slots._free == 1


def test_timeout_ends_the_wait() -> None:
    slots = FairSlots(1)
    with slots, pytest.raises(gevent.Timeout), gevent.Timeout(0.01), slots:
        pass
    assert not slots._waiting and slots._free == 1


def test_event_loop_itself_gets_no_slot() -> None:
    """It could not wait within the work, which would have begun by then."""
    slots = FairSlots(1)
    refused: list[Exception] = []

    def take() -> None:
        try:
            slots.__enter__()
        except NoWaitError as error:
            refused.append(error)

    gevent.get_hub().loop.run_callback(take)
    gevent.sleep(0)
    assert len(refused) == 1
    with slots:  # it is still free
        pass
