"""Client of an engine with a real model in another process."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from itertools import count
from math import inf

import gevent
import msgspec
import zmq.green as zmq
from gevent import Greenlet
from gevent.event import AsyncResult
from msgspec.structs import replace
from zmq.utils.monitor import recv_monitor_message

from app.core.base.clock.clock import Clock
from app.core.base.clock.pause import pause_if_possible
from app.core.base.metrics.draft_counters import DraftCounters
from app.core.base.metrics.recorder import Recorder
from app.core.engine.client import EngineClient
from app.core.engine.errors import EngineDeadError
from app.core.engine.outputs import Emit
from app.core.engine.request import EngineRequest, watches_of
from app.core.engine.sequence import Handle
from app.extensions.llm.heartbeat import MAX_SILENCE_S, Heartbeat, is_ending
from app.extensions.llm.remote_sequence import NamesOf, ReaderOf, RemoteSequence
from app.extensions.llm.wire import (
    Abort,
    CommandResult,
    EngineCommand,
    EngineCoreOutput,
    EngineLoad,
    Hello,
    Notice,
    Order,
    PublishedEvents,
    Ready,
)
from config.settings import Settings
from config.untrusted import UntrustedDataError, decode_untrusted
from vllm_facts.speculative import prompt_lookup_of

CONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED
LOST = zmq.EVENT_DISCONNECTED
RECONNECT_MS = 50
"""Reconnect interval while the engine is absent, in milliseconds."""
GREETING_MS = 500
"""Interval of greetings until the engine answers, in milliseconds; it may be loading its model."""
MAX_ORDERS = 16
"""Maximum requests in one message; their prompts may be long."""
BlocksListener = Callable[[str, int, bytes], None]
"""Receives topic, sequence number and encoded batch of KV events."""
log = logging.getLogger(__name__)


class RemoteEngine(EngineClient):
    """The `EngineClient` of a worker, to be started in that worker; workers may share the engine.

    The worker sends orders and receives notices. After a lost connection the engine is greeted
    again.

    When the engine process exits, running requests fail, new ones are rejected, and `healthy` is
    False. While the engine hangs, new requests are rejected and `healthy` is False.
    """

    def __init__(
        self,
        settings: Settings,
        endpoint: str,
        recorder: Recorder,
        clock: Clock,
        *,
        names: NamesOf,
        reader_of: ReaderOf,
    ) -> None:
        super().__init__(settings.scheduling, recorder)
        self.load = EngineLoad()
        speculation = prompt_lookup_of(settings.engine)
        if speculation is not None:
            positions = speculation.num_speculative_tokens
            self._drafts = DraftCounters(recorder.instruments, positions)
        recorder.read_load = self._read_load
        self._endpoint = endpoint
        self._is_greeted = False
        """True once the engine has answered on the current connection."""
        self._wants_kv_events = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(list[Notice])
        self._socket: zmq.Socket[bytes] | None = None
        self._greenlets: list[Greenlet[[], None]] = []
        self.clock = clock
        self.names = names
        self.reader_of = reader_of
        self._heartbeat = Heartbeat(endpoint, clock.now)
        self._max_silence_s = min(MAX_SILENCE_S, settings.engine.engine_timeout / 2) or inf
        self._listener: BlocksListener | None = None
        self._ready: Ready | None = None
        self._numbers = count(1)
        self._choices: dict[int, RemoteSequence] = {}
        self._other_workers = 0
        """Number of other workers' sequences."""
        self._answers: dict[int, AsyncResult[CommandResult]] = {}

    def listen(self, listener: BlocksListener) -> None:
        """Passes the engine's KV events to `listener`. Call before `start`."""
        self._listener = listener
        self._wants_kv_events = True

    def start(self) -> None:
        """Connects to the engine, which may not be there yet."""
        self._socket = socket = zmq.Context().socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = 0
        socket.rcvhwm = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an absent engine
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        monitor = socket.get_monitor_socket(CONNECTED | LOST)
        self._greenlets = [
            gevent.spawn(self._watch, socket, monitor),
            gevent.spawn(self._read, socket),
        ]
        socket.connect(self._endpoint)

    def close(self) -> None:
        """Ends the connection."""
        gevent.killall(self._greenlets)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
            self._socket.context.destroy()
        self._socket = None

    @property
    def healthy(self) -> bool:
        """True while the engine is connected, loaded, not killed, and not silent."""
        ready = self._ready
        if ready is None or is_ending(ready.pid):
            return False
        return not self._heartbeat.is_silent(self._max_silence_s)

    @property
    def running(self) -> int:
        """Number of running sequences of this worker."""
        return sum(choice.running for choice in self._choices.values())

    @property
    def waiting(self) -> int:
        """Number of waiting sequences of this worker."""
        return len(self._choices) - self.running

    @property
    def _unfinished(self) -> int:
        """Sequences of all workers.

        Those of this worker are counted here: the engine's `EngineLoad` is a step behind.
        """
        return len(self._choices) + self._other_workers

    @property
    def _queued(self) -> int:
        return max(0, self._unfinished - self._slots)

    def _free(self, adapter: str | None) -> int:
        return self._slots + self._max_waiting - self._unfinished

    def _read_load(self) -> tuple[int, int, float]:
        return self.load.running, self.load.waiting, self.load.cache_usage

    def submit(
        self, requests: ListOf[EngineRequest], emit: Emit, *, awaited: bool = False
    ) -> Handle:
        """Sends all choices of a request to the engine; see `EngineClient.submit`."""
        if not requests:
            return Handle(self._active)
        if self.refuses_requests:
            self.refuse(requests, emit)
            return Handle(self._active)
        handle = Handle(self._active, emit)
        self.check_admission(len(requests))
        choices = []
        for request in requests:
            choice = RemoteSequence(self, request, next(self._numbers), handle)
            choice.watches = watches_of(request)
            choices.append(choice)
        if not self._send([choice.order(awaited) for choice in choices[:MAX_ORDERS]]):
            raise EngineDeadError
        self._choices |= {choice.key: choice for choice in choices}
        handle.begin(choices)
        for first in range(MAX_ORDERS, len(choices), MAX_ORDERS):
            pause_if_possible()
            batch = choices[first : first + MAX_ORDERS]
            unfinished = [choice for choice in batch if not choice.over]
            if not self._send([choice.order(awaited) for choice in unfinished]):
                _fail(unfinished)
        return handle

    def command(self, command: EngineCommand) -> AsyncResult[CommandResult]:
        """Sends an operator's command under a new number; returns its future answer.

        Raises:
            EngineDeadError: No engine is connected.
        """
        number = next(self._numbers)
        if self._ready is None or not self._send([replace(command, number=number)]):
            raise EngineDeadError
        answer: AsyncResult[CommandResult] = AsyncResult()
        self._answers[number] = answer
        return answer

    def leave(self, choice: RemoteSequence) -> None:
        """Removes a choice, at its end."""
        self._choices.pop(choice.key, None)
        if choice.is_computed:
            self._send([Abort([choice.key])])

    def _send(self, orders: ListOf[Order]) -> bool:
        """Sends without waiting; returns False when no engine is connected."""
        if self._socket is None:
            return False
        try:
            self._socket.send(self._encode(orders), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _read(self, socket: zmq.Socket[bytes]) -> None:
        while True:
            try:
                notices = decode_untrusted(socket.recv(), decoder=self._decoder)
            except UntrustedDataError:
                log.exception("invalid message from the engine")
                continue
            for notice in notices:
                self._handle_notice(notice)

    def _watch(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        hello = [Hello(self._wants_kv_events)]
        while True:
            if not monitor.poll(GREETING_MS):
                if not self._is_greeted:
                    self._send(hello)
                continue
            event = recv_monitor_message(monitor)["event"]
            if event == LOST:
                self._is_greeted = False
                if self._ready is not None:
                    log.error(
                        "the engine process exited, so %d sequences failed", len(self._choices)
                    )
                self._forget_engine()
            elif event == CONNECTED:
                self._send(hello)

    def _handle_notice(self, notice: Notice) -> None:
        match notice:
            case EngineCoreOutput():
                self._handle_output(notice)
            case EngineLoad():
                self._record_load(notice)
            case PublishedEvents():
                if self._listener is not None:
                    self._listener(notice.topic, notice.sequence, notice.batch)
            case CommandResult():
                answer = self._answers.pop(notice.number, None)
                if answer is not None:
                    answer.set(notice)
            case Ready():
                if self._ready is None or self._ready.boot != notice.boot:  # a new engine
                    self._forget_engine()
                self._ready = notice
                self._is_greeted = True

    def _handle_output(self, output: EngineCoreOutput) -> None:
        choice = self._choices.get(output.key)
        if choice is None:  # aborted meanwhile
            return
        try:
            choice.take(output)
        except Exception as error:
            log.exception("an engine output could not be delivered")
            choice.fail(error)

    def _record_load(self, load: EngineLoad) -> None:
        """Records the load of the engine with all its workers; every worker records the same."""
        recorder = self.recorder
        previous = self.load
        self.load = load
        self.refuses_requests = load.refuses_requests
        self._other_workers = max(0, load.running + load.waiting - len(self._choices))
        recorder.looked_up(
            max(0, load.prefix_queries - previous.prefix_queries),
            max(0, load.prefix_hits - previous.prefix_hits),
        )
        recorder.preempted(max(0, load.preemptions - previous.preemptions))
        if load.drafts > previous.drafts:
            accepted = Counter(load.accepted)
            accepted.subtract(previous.accepted)
            draft_tokens = load.draft_tokens - previous.draft_tokens
            self._drafts.count(draft_tokens, accepted, load.drafts - previous.drafts)
        if load.step_tokens:
            recorder.step(load.step_tokens)

    def _forget_engine(self) -> None:
        """Fails all requests and commands of an engine that is gone."""
        self._ready = None
        self._record_load(EngineLoad())
        _fail(list(self._choices.values()))
        answers = self._answers
        self._answers = {}
        for number, answer in answers.items():
            answer.set(CommandResult(number=number, error=str(EngineDeadError())))


def _fail(choices: ListOf[RemoteSequence]) -> None:
    for choice in choices:
        choice.is_computed = False
        choice.fail(EngineDeadError())
