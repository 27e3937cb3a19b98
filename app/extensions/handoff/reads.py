"""Reads of blocks that other engines hold: questions to their side channels, with timeouts.

Start with `Reads`. Nothing here waits: the wheel calls what is due, the channel what has arrived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol

from app.core.base.clock.timer_wheel import ScheduledCall, TimerWheel
from app.extensions.handoff.counters import Counters
from app.extensions.handoff.messages import (
    Answer,
    Done,
    Heartbeat,
    Message,
    Question,
    Read,
    SendAnswer,
    Source,
)

HEARTBEATS_PER_LEASE = 6
"""Heartbeats in the duration of a lease, as in vLLM 0.32."""
MAX_HEARTBEAT_IDS = 1_000
"""Maximum number of requests in one heartbeat."""
MAX_WAIT_S = 480.0
"""Time after which a request no longer extends its lease, in seconds.

Two full pods that wait for each other's blocks would otherwise wait forever.
"""
UNREACHABLE = "the prefill pod cannot be reached"
NO_ANSWER = "the prefill pod does not answer"
NO_SOURCE = "kv_transfer_params do not name the blocks of a prefill"
log = logging.getLogger(__name__)

Finish = Callable[[bool], None]
"""Called once with the result of a read: True if the blocks have arrived."""


class Channel(Protocol):
    """The side channel of an engine."""

    port: int

    def serve(
        self, respond: Callable[[Question, SendAnswer], str], take_answer: Callable[[Answer], None]
    ) -> None:
        """Sets the functions that answer a question, and that receive answers.

        The first one returns the problem with a question. The `SendAnswer` sends one more answer.
        """

    def open(self) -> None:
        """Starts to listen at `port`, once. Sets the port if it listens at another one."""

    def send(self, host: str, port: int, question: Question) -> bool:
        """Sends without waiting; returns False if the peer cannot be addressed."""

    def forget(self, host: str, port: int) -> None:
        """Drops the connection to a peer that does not answer."""


class ReadSettings(NamedTuple):
    """Times in seconds."""

    timeout_s: float
    """Maximum time until a peer answers."""
    lease_s: float
    wait_s: float = MAX_WAIT_S
    """Maximum time that a read waits for its prefill."""


class RemoteRead:
    """The blocks of one prompt on another engine, from the arrival of the request to its end."""

    __slots__ = ("finish", "is_over", "number", "ready_s", "since_s", "source")

    def __init__(self, source: Source | None, number: str, since_s: float) -> None:
        """`source` is None if the request names none. `number` is unique in the world."""
        self.source = source
        self.number = number
        self.since_s = since_s
        self.is_over = False
        self.ready_s = 0.0
        """Earliest time at which the blocks have arrived."""
        self.finish: Finish | None = None


class Reads:
    """All reads of one engine."""

    def __init__(
        self,
        wheel: TimerWheel,
        now: Callable[[], float],
        *,
        channel: Channel,
        counters: Counters,
        settings: ReadSettings,
        name: Callable[[], str],
    ) -> None:
        """`name` returns the id of this engine."""
        self._wheel = wheel
        self._now = now
        self._channel = channel
        self._counters = counters
        self._settings = settings
        self._name = name
        self._numbers = count(1)
        self._pending: dict[int, Callable[[str], None]] = {}
        """Functions that receive the problem of each question; an empty text is success."""
        self._waiting: dict[RemoteRead, None] = {}
        """Reads whose leases are extended."""
        self._beats = False

    @property
    def open(self) -> int:
        """Number of reads and questions that have not ended."""
        return len(self._waiting) + len(self._pending)

    def expect(self, source: Source | None) -> RemoteRead:
        """Returns the read of a request that has arrived; extends its lease from now on."""
        read = RemoteRead(source, self._new_number(), self._now())
        if source is not None:
            self._watch(read, source)
        return read

    def _watch(self, read: RemoteRead, source: Source) -> None:
        """Extends the lease of a read's blocks from now on."""
        read.source = source
        self._waiting[read] = None
        if not self._beats:
            self._beats = True
            self._wheel.call_soon(self._beat)

    def start(self, read: RemoteRead, transfer_s: float, finish: Finish) -> None:
        """Reads the blocks, which takes at least `transfer_s`, and calls `finish` later."""
        read.finish = finish
        read.ready_s = self._now() + transfer_s
        source = read.source
        if source is None:
            self._wheel.call_soon(partial(self._fail, read, NO_SOURCE))
            return
        self._ask(source, Read(source.request_id, read.number), partial(self._announced, read))

    def abandon(self, read: RemoteRead) -> None:
        """Ends a read whose request has ended, and notifies the engine that holds the blocks."""
        if read.is_over:
            return
        self._end(read)
        source = read.source
        if source is not None:
            self._release(read, source)

    def _release(self, read: RemoteRead, source: Source) -> None:
        done = Done(source.request_id, read.number)
        self._ask(source, done, partial(self._notified, source))

    def _new_number(self) -> str:
        """Returns a number that no other read in the world has."""
        return f"{self._name()}:{next(self._numbers)}"

    def answered(self, answer: Answer) -> None:
        """Takes an answer. Does nothing if it comes too late."""
        receive = self._pending.pop(answer.number, None)
        if receive is not None:
            receive(answer.problem)

    def _ask(self, source: Source, message: Message, receive: Callable[[str], None]) -> None:
        number = next(self._numbers)
        self._pending[number] = receive
        question = Question(number, source.engine_id, message)
        if self._channel.send(source.host, source.port, question):
            due_s = self._now() + self._settings.timeout_s
            self._wheel.add(due_s, ScheduledCall(partial(self._time_out, number, source)))
        else:
            self._wheel.call_soon(partial(self.answered, Answer(number, UNREACHABLE)))

    def _time_out(self, number: int, source: Source) -> None:
        if number in self._pending:
            self._channel.forget(source.host, source.port)
            self.answered(Answer(number, NO_ANSWER))

    def _announced(self, read: RemoteRead, problem: str) -> None:
        """Waits for the end of the transfer, if the other engine holds the blocks."""
        if read.is_over:
            return
        if problem:
            self._fail(read, problem)
        elif read.ready_s <= self._now():
            self._complete(read)
        else:
            self._wheel.add(read.ready_s, ScheduledCall(partial(self._complete, read)))

    def _complete(self, read: RemoteRead) -> None:
        """Notifies the other engine, whose answer shows whether it held the blocks until now."""
        source = read.source
        if not read.is_over and source is not None:
            done = Done(source.request_id, read.number)
            self._ask(source, done, partial(self._confirmed, read))

    def _confirmed(self, read: RemoteRead, problem: str) -> None:
        if read.is_over:
            return
        if problem:
            self._fail(read, problem)
            return
        self._finish(read, is_complete=True)

    def _fail(self, read: RemoteRead, problem: str) -> None:
        if read.is_over:
            return
        log.warning("the KV cache for a prompt cannot be read from %s: %s", read.source, problem)
        self._counters.transfer_failed()
        self._finish(read, is_complete=False)

    def _notified(self, source: Source, problem: str) -> None:
        if problem in (UNREACHABLE, NO_ANSWER):
            log.warning("could not notify %s: %s", source, problem)
            self._counters.notification_failed()

    def _finish(self, read: RemoteRead, is_complete: bool) -> None:
        """Ends a read, and reports the result to its request."""
        finish = read.finish
        self._end(read)
        if finish is not None:
            finish(is_complete)

    def _end(self, read: RemoteRead) -> None:
        read.is_over = True
        self._waiting.pop(read, None)
        read.finish = None

    def _beat(self) -> None:
        """Sends a heartbeat to each engine that holds blocks for waiting requests."""
        now_s = self._now()
        requests: dict[tuple[str, int, str], list[str]] = {}
        for read in list(self._waiting):
            source = read.source
            if source is None or now_s - read.since_s > MAX_WAIT_S:
                continue
            engine = (source.host, source.port, source.engine_id)
            requests.setdefault(engine, []).append(source.request_id)
        self._send_heartbeats(requests)
        self._beats = bool(self._waiting)
        if self._beats:
            interval_s = self._settings.lease_s / HEARTBEATS_PER_LEASE
            self._wheel.add(now_s + interval_s, ScheduledCall(self._beat))

    def _send_heartbeats(self, requests: Mapping[tuple[str, int, str], list[str]]) -> None:
        for (host, port, engine_id), request_ids in requests.items():
            for start in range(0, len(request_ids), MAX_HEARTBEAT_IDS):
                part = request_ids[start : start + MAX_HEARTBEAT_IDS]
                self._channel.send(host, port, Question(0, engine_id, Heartbeat(part)))
