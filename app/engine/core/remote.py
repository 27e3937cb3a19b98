"""Client of an engine in another process with a real model:

heartbeat, requests, operator's commands.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

import gevent
import msgspec
import zmq.green as zmq
from gevent import Greenlet
from gevent.event import AsyncResult, Event
from msgspec.structs import replace
from zmq.utils.monitor import recv_monitor_message

from app.base.clock.clock import Clock
from app.base.clock.pause import pause_if_possible
from app.base.metrics.recorder import Recorder
from app.engine.core import wire
from app.engine.core.batch import Phase, SequenceStatus
from app.engine.core.errors import (
    CallerLeft,
    CommandFailed,
    EngineDead,
    EngineFailed,
    RequestRefused,
)
from app.engine.core.outputs import Emit, Finish, LazySequence, Part, TokenLogprob, Tokens
from app.engine.core.request import EngineRequest, watches_of
from app.engine.core.sequence import COUNTED_AS, EngineClient, Handle, Sequence
from app.engine.parsing import TextReader
from config.settings import Settings

NS: Final = 1_000_000_000
EVERY_S: Final = 0.2
"""Shortest time between two writes, in seconds."""
TELL_WHERE: Final = signal.SIGUSR1
"""Signal on which the engine logs the stacks of all its threads."""
LONGEST_SILENCE_S: Final = 10.0
"""Longest silence of a healthy engine, in seconds; half of `engine-timeout`, if that is less."""


class Heartbeat:
    """Heartbeat of the engine at `endpoint`.

    Without the file no beat is expected: the model is loading.
    """

    def __init__(self, endpoint: str, now: Callable[[], float] = time.monotonic) -> None:
        self._path = Path(endpoint.removeprefix("ipc://") + ".alive")
        self._now = now
        self._next_s = 0.0

    def begin(self) -> None:
        with suppress(OSError):  # the folder is gone: the server is shutting down
            self._path.touch(mode=0o600)
            self._tell(self._now())

    def beat(self) -> None:
        """Beats; cheap enough to call for every layer of a model."""
        now_s = self._now()
        if now_s >= self._next_s:
            self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        self._next_s = now_s + EVERY_S
        with suppress(OSError):
            os.utime(self._path, ns=(round(now_s * NS),) * 2)

    def stop(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Expects no beat during work of unknown length, such as reading weights."""
        self.stop()
        try:
            yield
        finally:
            self.begin()

    def last_s(self) -> float | None:
        """Returns the time of the last beat in monotonic seconds; None where none is expected."""
        try:
            return os.stat(self._path).st_mtime_ns / NS
        except OSError:
            return None

    def is_silent(self, limit_s: float) -> bool:
        last_s = self.last_s()
        return last_s is not None and self._now() - last_s > limit_s


class HeartbeatMonitor:
    """Measures an engine's silence as seen by its watcher, which may have been stopped as well."""

    def __init__(self, most_between_s: float = 2.0) -> None:
        """`most_between_s` caps the time that counts between two looks."""
        self._most_between_s = most_between_s
        self._last_s: float | None = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def look(self, last_s: float | None, now_s: float) -> float:
        """Returns the seconds of silence, given the time of the last beat."""
        if last_s is None or last_s != self._last_s:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now_s - self._looked_s, self._most_between_s)
        self._last_s, self._looked_s = last_s, now_s
        return self._silent_s


EXITING, KILLED = 1 << 2, 1 << signal.SIGKILL - 1
"""Linux's flag of a process that exits, and the bit of a SIGKILL that a process still has to take.
"""


def is_ending(pid: int) -> bool:
    """Returns whether the process was killed or exits, on Linux; its sockets last until its memory
    is freed.

    False where that cannot be known; the connection ends later.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    fields = stat[stat.rindex(b")") + 2 :].split()  # from field 3 on, see proc_pid_stat(5)
    return bool(int(fields[6]) & EXITING or int(fields[28]) & KILLED)


log = logging.getLogger(__name__)

Names = Callable[[Listed[int]], Listed[str]]
BROKEN = "\N{REPLACEMENT CHARACTER}"


class RemoteSequence(Sequence):
    """A choice from its request to its end, whatever ends it."""

    __slots__ = (
        "_content",
        "_held",
        "_held_logprobs",
        "_names",
        "_part",
        "_reader",
        "is_computed",
        "key",
    )
    in_steps = True

    def __init__(
        self, engine: RemoteEngine, request: EngineRequest, key: int, handle: Handle
    ) -> None:
        """Emits text by parts if the engine has a reader for the request."""
        now, recorder = engine.clock.now, engine.recorder
        super().__init__(request, request.max_tokens, now, recorder, handle, engine.leave)
        self.key = key
        self.is_computed = True
        """False once the engine has reported the end of the choice."""
        self._names, self._reader = engine.names, engine.reader_of(request)
        self._held: list[int] = []
        """Token ids whose text the reader still keeps."""
        self._held_logprobs: list[TokenLogprob] = []
        self._part: Part | None = None
        self._content: list[str] = []
        """Texts without thoughts and calls, if the sequence is watched."""

    def text(self, whole: bool = True) -> str:
        return "".join(self._content)

    def order(self) -> wire.EngineCoreRequest:
        request = self.request
        shared = {name: getattr(request, name) for name in wire.ChoiceRequest.__struct_fields__}
        shared["prompt_ids"] = list(request.prompt_ids)
        return wire.EngineCoreRequest(
            key=self.key, sampling=request.sampling or wire.Sampling(), **shared
        )

    def status(self) -> SequenceStatus:
        """Reports QUEUED until the first token: the engine reports nothing earlier."""
        phase = Phase.QUEUED if self._first_s is None else Phase.DECODE
        return SequenceStatus(phase, self.prompt_tokens, 0, self.scheduled_s, self._first_s)

    def take(self, output: wire.EngineCoreOutput) -> None:
        if self.over:
            return
        if not self.running:
            self._begin(output)
        ids = output.ids
        if ids:
            self._account(len(ids), output.at_s)
        self.preemptions = output.preemptions
        if output.finish is not None:
            self.is_computed = False
        if output.finish == "error" or output.finish == "timeout":
            text = output.error or "The request waited too long for its turn."
            self.fail(RequestRefused(text) if output.is_refused else EngineFailed(text))
            return
        finish = None if output.finish is None else Finish(output.finish, output.stop_reason)
        logprobs = (
            None if output.logprobs is None else [self._entry(entry) for entry in output.logprobs]
        )
        if self._reader is None and self.watches:
            self._content += output.texts
        if self._reader is not None:
            self._read(self._reader, output, logprobs, finish)
        elif finish is None and logprobs is None and self._take_token is not None and len(ids) == 1:
            self._take_token(output.texts[0], ids[0], output.at_s)
        elif ids or finish is not None:
            self._emit(Tokens(self.request.index, output.texts, ids, output.at_s, logprobs, finish))
        if output.finish is not None and not self.over:
            self._end(COUNTED_AS[output.finish])

    def _begin(self, output: wire.EngineCoreOutput) -> None:
        self.running = True
        self.scheduled_s = output.scheduled_s
        self.cached_tokens, self.created_tokens = output.cached_tokens, output.created_tokens
        self.queued_s = self.queued_s if output.queued_s is None else output.queued_s
        if output.finish in ("error", "timeout"):
            return  # only the failure is emitted
        prompt: Listed[TokenLogprob | None] | None = None
        if (entries := output.prompt_logprobs) is not None:
            prompt = LazySequence(
                lambda place: None if (entry := entries[place]) is None else self._entry(entry),
                range(len(entries)),
            )
        self._start(output.at_s, prompt, self._reader is None and output.logprobs is None)

    def _read(
        self,
        reader: TextReader,
        output: wire.EngineCoreOutput,
        logprobs: Listed[TokenLogprob] | None,
        finish: Finish | None,
    ) -> None:
        """Emits tokens through the reader; ids of kept text leave with the text that follows."""
        ids, at_s, texts = output.ids, output.at_s, output.texts or [""]
        if len(ids) != len(output.texts):
            raise ValueError("the engine sent another number of texts than of tokens")
        for place, text in enumerate(texts):
            if place < len(ids):
                self._held.append(ids[place])
            if logprobs is not None:
                self._held_logprobs.append(logprobs[place])
            end = finish if place == len(texts) - 1 else None
            pieces = [*reader.feed(text), *(reader.finish() if end else ())]
            if end and not pieces:
                pieces = [(self._part, "")]
            for number, (self._part, said) in enumerate(pieces, 1):
                held, self._held = self._held, []
                if self._part is None and self.watches:
                    self._content.append(said)
                entries, self._held_logprobs = self._held_logprobs, []
                # Without a held token the text is an extra item.
                shown = (
                    [*[""] * (len(held) - 1), said]
                    if held or said or self._part is not None
                    else []
                )
                last = end if number == len(pieces) else None
                index = self.request.index
                self._emit(Tokens(index, shown, held, at_s, entries or None, last, self._part))

    def _entry(self, entry: wire.WireLogprob) -> TokenLogprob:
        others = [(token_id, value) for token_id, value in entry.top if token_id != entry.token_id]
        ids = [entry.token_id, *(token_id for token_id, _ in others)]
        names = ["" if BROKEN in name else name for name in self._names(ids)]
        values = [entry.logprob, *(value for _, value in others)]
        top = list(zip(ids, names, values, strict=True))
        return TokenLogprob(entry.token_id, names[0], entry.logprob, top, entry.rank)


CONNECTED, LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
RECONNECT_MS = 50
"""Reconnect interval while the engine is absent, in milliseconds."""
GREETING_MS = 500
"""Interval of greetings until the engine answers, in milliseconds; it may be loading its model."""
MOST_ORDERS = 16
"""Most requests in one message; their prompts may be long."""
ReaderOf = Callable[[EngineRequest], TextReader | None]
"""Returns the parser of a request's text into parts; None for a text without parts."""
BlocksListener = Callable[[str, int, bytes], None]


class RemoteEngine(EngineClient):
    """The `EngineClient` of a worker, to be started in that worker; several workers may share the
    engine.

    The worker sends orders and receives notices. After a lost connection the engine is greeted
    again.

    When the engine process exits, running requests fail, new ones are refused, and `healthy` is
    False. While the engine hangs, new requests are refused and `healthy` is False.
    """

    def __init__(
        self,
        settings: Settings,
        endpoint: str,
        recorder: Recorder,
        clock: Clock,
        names: Names,
        reader_of: ReaderOf,
    ) -> None:
        super().__init__(settings, recorder)
        self.load = wire.EngineLoad()
        if (speculation := settings.engine.speculation()) is not None:
            recorder.expect_drafts(speculation.num_speculative_tokens)
        recorder.read_load = lambda: (self.load.running, self.load.waiting, self.load.cache_usage)
        self._endpoint = endpoint
        self._is_greeted = False
        """True once the engine has answered on the current connection."""
        self._wants_kv_events = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[wire.Notice]).decode
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._greenlets: list[Greenlet[[], None]] = []
        self.clock, self.names, self.reader_of = clock, names, reader_of
        self._heartbeat = Heartbeat(endpoint, clock.now)
        self._longest_silence_s = min(LONGEST_SILENCE_S, settings.engine.engine_timeout / 2) or inf
        self._listener: BlocksListener = lambda topic, sequence, batch: None
        self._ready: wire.Ready | None = None
        self._numbers = count(1)
        self._choices: dict[int, RemoteSequence] = {}
        self._others = 0
        """Number of other workers' sequences."""
        self._answers: dict[int, AsyncResult[wire.CommandResult]] = {}

    def listen(self, listener: BlocksListener) -> None:
        """Passes the engine's KV events to `listener`. To be called before `start`."""
        self._listener, self._wants_kv_events = listener, True

    def start(self) -> None:
        self._context = context = zmq.Context()
        self._socket = socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.sndhwm = socket.rcvhwm = 0
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for an absent engine
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        monitor = socket.get_monitor_socket(CONNECTED | LOST)
        self._greenlets = [
            gevent.spawn(self._watch, socket, monitor),
            gevent.spawn(self._read, socket),
        ]
        socket.connect(self._endpoint)

    def close(self) -> None:
        gevent.killall(self._greenlets)
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close()
        if self._context is not None:
            self._context.destroy()
        self._socket = self._context = None

    @property
    def healthy(self) -> bool:
        """True while the engine is connected, has loaded its model, is not killed, and is not
        silent.
        """
        ready = self._ready
        if ready is None or is_ending(ready.pid):
            return False
        return not self._heartbeat.is_silent(self._longest_silence_s)

    @property
    def running(self) -> int:
        return sum(choice.running for choice in self._choices.values())

    @property
    def waiting(self) -> int:
        return len(self._choices) - self.running

    @property
    def _unfinished(self) -> int:
        """Sequences of all workers.

        Own ones are counted here: the engine's `EngineLoad` is a step behind.
        """
        return len(self._choices) + self._others

    @property
    def _queued(self) -> int:
        return max(0, self._unfinished - self._slots)

    def _free(self, adapter: str | None) -> int:
        return self._slots + self._max_waiting - self._unfinished

    def submit(self, requests: Listed[EngineRequest], emit: Emit) -> Handle:
        if not requests:
            return Handle(self._active)
        handle = Handle(self._active, emit)
        self.check_admission(len(requests))
        choices = [
            RemoteSequence(self, request, next(self._numbers), handle) for request in requests
        ]
        for choice in choices:
            choice.watches = watches_of(choice.request)
        if not self._send([choice.order() for choice in choices[:MOST_ORDERS]]):
            raise EngineDead
        self._choices |= {choice.key: choice for choice in choices}
        handle.begin(choices)
        for first in range(MOST_ORDERS, len(choices), MOST_ORDERS):
            pause_if_possible()
            going = [choice for choice in choices[first : first + MOST_ORDERS] if not choice.over]
            if not self._send([choice.order() for choice in going]):
                _fail(going)
        return handle

    def command(self, command: wire.EngineCommand) -> AsyncResult[wire.CommandResult]:
        """Sends an operator's command under a new number; returns its future answer.

        Raises EngineDead.
        """
        number = next(self._numbers)
        if self._ready is None or not self._send([replace(command, number=number)]):
            raise EngineDead
        self._answers[number] = answer = AsyncResult()
        return answer

    def leave(self, choice: RemoteSequence) -> None:
        self._choices.pop(choice.key, None)
        if choice.is_computed:
            self._send([wire.Abort([choice.key])])

    def _send(self, orders: Listed[wire.Order]) -> bool:
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
                notices = self._decode(socket.recv())
            except msgspec.DecodeError:
                log.exception("the engine says what is not understood")
                continue
            self._take(notices)

    def _watch(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        hello = [wire.Hello(self._wants_kv_events)]
        while True:
            if not monitor.poll(GREETING_MS):
                if not self._is_greeted:
                    self._send(hello)
                continue
            event = recv_monitor_message(monitor)["event"]
            if event == LOST:
                self._is_greeted = False
                if self._ready is not None:
                    log.error("the engine is gone: %d sequences fail", len(self._choices))
                self._forget()
            elif event == CONNECTED:
                self._send(hello)

    def _take(self, notices: Listed[wire.Notice]) -> None:
        for notice in notices:
            if type(notice) is wire.EngineCoreOutput:
                if (choice := self._choices.get(notice.key)) is None:  # aborted meanwhile
                    continue
                try:
                    choice.take(notice)
                except Exception as error:
                    log.exception("what the engine said could not be told")
                    choice.fail(error)
            elif type(notice) is wire.EngineLoad:
                self._learn(notice)
            elif type(notice) is wire.PublishedEvents:
                self._listener(notice.topic, notice.sequence, notice.batch)
            elif type(notice) is wire.CommandResult:
                if (answer := self._answers.pop(notice.number, None)) is not None:
                    answer.set(notice)
            elif type(notice) is wire.Ready:
                if self._ready is None or self._ready.boot != notice.boot:  # a new engine
                    self._forget()
                self._ready, self._is_greeted = notice, True

    def _learn(self, load: wire.EngineLoad) -> None:
        """Records the load of the engine with all its workers; every worker records the same."""
        recorder, before, self.load = self.recorder, self.load, load
        self._others = max(0, load.running + load.waiting - len(self._choices))
        queries, hits = (
            load.prefix_queries - before.prefix_queries,
            load.prefix_hits - before.prefix_hits,
        )
        recorder.looked_up(max(0, queries), max(0, hits))
        recorder.preempted(max(0, load.preemptions - before.preemptions))
        if load.drafts > before.drafts:
            accepted = Counter(load.accepted)
            accepted.subtract(before.accepted)
            recorder.drafted(
                load.draft_tokens - before.draft_tokens, accepted, load.drafts - before.drafts
            )
        if load.step_tokens:
            recorder.step(load.step_tokens)

    def _forget(self) -> None:
        self._ready = None
        self._learn(wire.EngineLoad())
        _fail(list(self._choices.values()))
        answers, self._answers = self._answers, {}
        for number, answer in answers.items():
            answer.set(wire.CommandResult(number=number, error=str(EngineDead())))


def _fail(choices: Listed[RemoteSequence]) -> None:
    for choice in choices:
        choice.is_computed = False
        choice.fail(EngineDead())


class RemoteLifecycle:
    """See `Lifecycle`.

    Every method may raise EngineDead, or CommandFailed with the engine's message.
    """

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    @property
    def is_sleeping(self) -> bool:
        return self._engine.load.sleep_level is not None

    @property
    def paused(self) -> bool:
        return self._engine.load.paused

    def sleep(self, level: int, mode: wire.PauseMode, caller_left: Event) -> None:
        """See `Lifecycle`. Levels 1 and 2 free weights and cache."""
        self._do(wire.EngineCommand(name="sleep", level=level, mode=mode), caller_left)
        self._engine.load.paused, self._engine.load.sleep_level = True, level
        self._engine.recorder.sleeping(level)
        self._engine.recorder.slept("sleep", 0.0)

    def release_cache(self) -> None:
        raise CommandFailed(
            "This engine frees the memory of its KV cache when it sleeps at level 1 or 2."
        )

    def wake_up(self, tags: Collection[str] | None) -> bool:
        named = None if tags is None else tuple(tags)
        awake = bool(self._do(wire.EngineCommand(name="wake_up", tags=named)).value)
        if awake:
            self._engine.load.paused, self._engine.load.sleep_level = False, None
            self._engine.recorder.sleeping(None)
        self._engine.recorder.slept("wake", 0.0)
        return awake

    def pause(self, mode: wire.PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        self._do(wire.EngineCommand(name="pause", mode=mode, clear=clear_cache), caller_left)
        self._engine.load.paused = True

    def resume(self) -> None:
        self._do(wire.EngineCommand(name="resume"))
        self._engine.load.paused = False

    def reset_prefix_cache(self, under_requests: bool = False) -> bool:
        return bool(
            self._do(wire.EngineCommand(name="reset_prefix_cache", clear=under_requests)).value
        )

    def _do(
        self, command: wire.EngineCommand, caller_left: Event | None = None
    ) -> wire.CommandResult:
        answer: AsyncResult[wire.CommandResult] = self._engine.command(command)
        gevent.wait([answer] if caller_left is None else [answer, caller_left], count=1)
        if not answer.ready():
            raise CallerLeft
        told: wire.CommandResult = answer.get()
        if told.error is not None:
            raise CommandFailed(told.error)
        return told
