"""The pool of slots and the line before it:

who runs, who waits, who is next; and no slot is ever lost.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.core.engine.batch import AdapterKey, LoRASlots
from app.core.engine.waiting_queue import FRONT_OF_QUEUE, MAX_STALE, WaitingQueue
from config.settings import LatencySettings
from tests.core.engine.harness import Harness


def test_thousands_of_queued_requests_end_without_a_recursion_error() -> None:
    harness = Harness(slots=1, max_waiting=6000, time_to_first_token=1.0)
    long = harness.ask("long")
    harness.engine.timing.apply(LatencySettings())
    for number in range(5000):
        harness.ask(f"short{number}")
    long.abort()
    harness.clock.advance(60)
    assert len(harness.events) == 2 * 5000 and harness.is_idle()


ADAPTERS = [None, "a", "b", "c"]


@dataclass(eq=False)
class Ticket:
    adapter: str | None
    priority: int
    arrived: int = 0
    place: int = 0
    lora: AdapterKey | None = None


class Line(RuleBasedStateMachine):
    """Everybody in order of arrival, and what is said of who is next."""

    prefers_resident = False

    def __init__(self) -> None:
        super().__init__()
        self.lora = LoRASlots(2, lambda adapter: True)
        self.by_priority = True
        self.begin()

    def begin(self) -> None:
        self.queue: WaitingQueue[Ticket] = WaitingQueue(
            self.lora, self.by_priority, self.prefers_resident
        )
        self.line: list[tuple[float, int, Ticket]] = []
        self.arrivals = 0
        self.running: list[Ticket] = []
        self.places: dict[Ticket, int] = {}

    @rule()
    def is_by_the_other_policy(self) -> None:
        self.by_priority = not self.by_priority
        self.queue.sort(self.by_priority)
        line = self.line
        self.line = []
        for place, number, ticket in line:
            self.stands(ticket, number, place == FRONT_OF_QUEUE)

    @rule(adapter=st.sampled_from(ADAPTERS), priority=st.integers(0, 2))
    def comes(self, adapter: str | None, priority: int) -> None:
        ticket = Ticket(adapter, priority)
        self.arrivals += 1
        self.queue.add(ticket)
        self.stands(ticket, self.arrivals)

    @rule(adapter=st.sampled_from(ADAPTERS))
    def comes_before_all_others(self, adapter: str | None) -> None:
        self.arrivals += 1
        ticket = Ticket(adapter, 0, place=self.arrivals)
        self.queue.add(ticket, first=True)
        self.stands(ticket, self.arrivals, first=True)

    def stands(self, ticket: Ticket, number: int, first: bool = False) -> None:
        self.places[ticket] = number
        priority = FRONT_OF_QUEUE if first else ticket.priority if self.by_priority else 0
        self.line.append((priority, number, ticket))

    def next(self) -> Ticket | None:
        resident = set(self.lora)
        room = self.lora.has_room()
        if room and not self.prefers_resident:
            return min(self.line)[2] if self.line else None
        ready = [
            place
            for place in self.line
            if place[2].adapter is None
            or place[2].adapter in resident
            or (place[0] == FRONT_OF_QUEUE and room)
        ]
        if not ready and room:
            ready = self.line
        return min(ready)[2] if ready else None

    @precondition(lambda self: self.next() is not None)
    @rule()
    def goes_in(self) -> None:
        ticket = self.next()
        assert ticket is not None and self.queue.head() is ticket
        self.queue.pop(ticket)
        self.line = [place for place in self.line if place[2] is not ticket]
        self.running.append(ticket)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9), returns=st.booleans())
    def leaves_its_place(self, which: int, returns: bool) -> None:
        ticket = self.running.pop(which % len(self.running))
        self.queue.left(ticket)
        if returns:
            self.queue.add(ticket)
            self.stands(ticket, self.places[ticket])

    @precondition(lambda self: self.line)
    @rule(which=st.integers(0, 9))
    def gives_up(self, which: int) -> None:
        ticket = self.line.pop(which % len(self.line))[2]
        assert self.queue.remove(ticket) and not self.queue.remove(ticket)

    @rule(adapter=st.sampled_from(ADAPTERS))
    def many_come_and_give_up(self, adapter: str | None) -> None:
        for _ in range(2 * MAX_STALE):
            ticket = Ticket(adapter, 1)
            self.arrivals += 1
            self.queue.add(ticket)
            assert self.queue.remove(ticket)

    @invariant()
    def the_same_one_is_next(self) -> None:
        assert self.queue.head() is self.next()
        assert self.queue.members == {place[2] for place in self.line}
        queued = sum(map(len, self.queue._queues.values()))
        assert len(self.line) <= queued <= 2 * len(self.line) + MAX_STALE


class LineOfResidents(Line):
    """The line that puts those first whose adapter is in memory."""

    prefers_resident = True


TestLine = Line.TestCase
TestLine.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
TestLineOfResidents = LineOfResidents.TestCase
TestLineOfResidents.settings = TestLine.settings
