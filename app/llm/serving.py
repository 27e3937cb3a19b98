"""The loop of the engine process:

receives orders of workers, makes a step, sends each worker a message.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import msgspec
import zmq
from msgspec.structs import asdict

from app.engine.core.errors import EngineError
from app.engine.core.remote import Heartbeat
from app.engine.core.wire import (
    MEMORY,
    Abort,
    CommandResult,
    EngineCommand,
    EngineCoreOutput,
    EngineCoreRequest,
    EngineLoad,
    EngineProcessOptions,
    EngineSizes,
    Hello,
    Notice,
    Order,
    PublishedEvents,
    Ready,
    woken_by,
)
from app.engine.kvcache.events import EventBatch, encoder
from app.engine.kvcache.publisher import EventSender
from app.llm.config import Checkpoint
from app.llm.engine import LLMEngine
from app.llm.engine_options import EngineOptions
from app.llm.errors import LLMError, ModelLoadError, RequestError
from app.llm.llm import assemble
from app.llm.loader import load_checkpoint
from app.llm.model_files import find_model
from app.llm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from app.llm.structured_output import FormMatcher

IDLE_S: Final = 1.0
"""Longest wait for orders in seconds; afterwards workers get the load."""
COMPILING_S: Final = 0.005
"""Longest wait for orders in seconds while a structured output is compiled."""
MOST_MESSAGES: Final = 256
"""Most messages received at a time, so that a flood of orders does not stop the steps."""
FORMS_AT_ONCE: Final = 2
"""Threads that compile structured outputs, as a large schema takes seconds."""
FORM_CPU_S: Final = 1.0
"""Most seconds of CPU time to compile a structured output, as clients are not trusted."""

logger = logging.getLogger(__name__)


class WorkerClient:
    """A worker that has sent a message. Its requests' ids in the engine are (worker, key)."""

    def __init__(self, name: bytes) -> None:
        self.name, self.wants_kv_events = name, False
        self.keys: set[int] = set()
        self.notices: list[Notice] = []
        """Content of the next message to the worker."""


RequestId: TypeAlias = tuple[WorkerClient, int]


class EngineService:
    """Runs an engine for workers. Not thread-safe.

    A pause admits no more requests. Sleep level 0 only pauses; levels 1 and 2 free weights and KV
    cache, and weights are read from their files again. Requests continue afterwards and are
    computed anew; the prefix cache is emptied.
    """

    def __init__(
        self,
        engine: LLMEngine,
        reload: Callable[[], Checkpoint],
        socket: zmq.Socket[bytes],
        events: EventSender | None,
        heartbeat: Heartbeat,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reload` reads the weights again. Raises ModelLoadError when it cannot."""
        self._engine, self._reload, self._socket = engine, reload, socket
        self._events, self._heartbeat, self._now = events, heartbeat, now
        self._ready = Ready(
            boot=secrets.token_hex(8),
            pid=os.getpid(),
            max_model_len=engine.max_tokens,
            num_blocks=engine.options.num_blocks,
            block_size=engine.options.block_size,
        )
        engine.pacer.on_layer = heartbeat.beat
        self._encode_events = encoder("map")
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Order]).decode
        if events is not None:
            events.listen(self._note_blocks)
        self._workers: dict[bytes, WorkerClient] = {}
        self._compilers = ThreadPoolExecutor(FORMS_AT_ONCE, "forms")
        self._uncompiled: dict[RequestId, tuple[Future[FormMatcher], EngineCoreRequest]] = {}
        """Requests whose structured output is being compiled."""
        self._settling: list[tuple[WorkerClient, EngineCommand]] = []
        """Commands that wait until no request runs."""
        self._asleep: set[str] = set()
        """Memory that is freed."""
        self.sleep_level: int | None = None
        """None when awake."""
        self._told_s = -math.inf
        self._due_s = math.inf if events is None else 0.0
        """Time of the next turn of `events`."""
        self._stopping = False

    def stop(self) -> None:
        """Ends `run` after this step; safe in signal handlers."""
        self._stopping = True

    def run(self) -> None:
        """Runs until `stop`.

        Reraises errors of a step, after which the engine's state is unknown.
        """
        self._heartbeat.begin()
        try:
            while not self._stopping:
                rest_s = min(
                    COMPILING_S if self._uncompiled else IDLE_S, max(0.0, self._due_s - self._now())
                )
                self.turn(rest_s if self._engine.idle else 0.0)
        except BaseException:
            self._end("The engine has failed.")
            raise
        self._end("The engine was stopped.")

    def turn(self, timeout_s: float) -> None:
        """Waits for orders, at most `timeout_s` seconds, carries them out and makes a step."""
        engine = self._engine
        self._heartbeat.beat()
        has_orders = bool(self._socket.poll(round(timeout_s * 1000)))
        if has_orders:
            self._receive()
        self._add_compiled()
        steps = engine.stats.steps
        outputs, now_s = engine.step(), self._now()
        for sequence, said in outputs:
            worker, said.key = cast(RequestId, sequence.request_id)
            said.at_s = now_s
            worker.notices.append(said)
            if said.finish is not None:
                worker.keys.discard(said.key)
        stepped = engine.stats.steps > steps
        if self._events is not None:
            if stepped:
                self._events.put(engine.cache.take_events())
            self._due_s = self._events.turn()
        if self._settling and not (engine.scheduler.running and engine.scheduler.paused):
            settling, self._settling = self._settling, []
            for worker, command in settling:
                self._answer(worker, command)
        has_news = has_orders or stepped or any(worker.notices for worker in self._workers.values())
        if has_news or self._now() >= self._told_s + IDLE_S:
            self._tell()

    # Orders.

    def _receive(self) -> None:
        for _ in range(MOST_MESSAGES):
            try:
                name, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            worker = self._workers.setdefault(name, WorkerClient(name))
            try:
                orders = self._decode(b"".join(frames))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                logger.warning("a message of a worker is ignored: %s", error)
                continue
            for order in orders:
                self._do(worker, order)

    def _do(self, worker: WorkerClient, order: Order) -> None:
        match order:
            case EngineCoreRequest(key=key):
                if key in worker.keys:
                    logger.warning(
                        "request %s is ignored: its key %d is in use", order.request_id, key
                    )
                    return
                worker.keys.add(key)
                if order.form is None:
                    self._add(worker, order)
                else:
                    form = self._compilers.submit(self._engine.compile, order.form)
                    self._uncompiled[worker, key] = form, order
            case Abort():
                for key in order.keys:
                    self._abort(worker, key)
            case EngineCommand():
                self._command(worker, order)
            case Hello():
                worker.wants_kv_events = order.kv_events
                worker.notices.append(self._ready)

    def _add(
        self, worker: WorkerClient, order: EngineCoreRequest, form: FormMatcher | None = None
    ) -> None:
        same_names = set(SamplingParams.__struct_fields__) & set(
            EngineCoreRequest.__struct_fields__
        )
        try:
            params = SamplingParams(
                **asdict(order.sampling),
                **{name: getattr(order, name) for name in same_names},
                structured_outputs=order.form,
                include_stop_str_in_output=order.include_stop,
            )
            self._engine.add_request(
                *((worker, order.key), order.prompt_ids, params, order.priority),
                cache_salt=order.cache_salt,
                form=form,
            )
        except LLMError as error:
            self._fail(worker, order.key, str(error), isinstance(error, RequestError))

    def _fail(self, worker: WorkerClient, key: int, error: str, is_refused: bool = False) -> None:
        worker.keys.discard(key)
        at_s = self._now()
        worker.notices.append(
            EngineCoreOutput(key=key, at_s=at_s, finish="error", error=error, is_refused=is_refused)
        )

    def _add_compiled(self) -> None:
        for worker, key in [it for it, (form, _) in self._uncompiled.items() if form.done()]:
            form, order = self._uncompiled.pop((worker, key))
            error = form.exception()
            if error is None:
                self._add(worker, order, form.result())
                continue
            if not isinstance(error, RequestError):  # a panic of the library is a BaseException
                error = RequestError(f"The form could not be compiled: {type(error).__name__}.")
            self._fail(worker, key, str(error), is_refused=True)

    def _abort(self, worker: WorkerClient, key: int) -> None:
        self._engine.abort((worker, key))
        if (worker, key) in self._uncompiled:
            self._uncompiled.pop((worker, key))[0].cancel()
        worker.keys.discard(key)

    # Commands.

    def _command(self, worker: WorkerClient, command: EngineCommand) -> None:
        if command.name in ("pause", "sleep"):
            self._engine.scheduler.paused = True
            if command.mode == "abort":
                for owner in self._workers.values():
                    for key in list(owner.keys):
                        self._abort(owner, key)
                        owner.notices.append(
                            EngineCoreOutput(key=key, at_s=self._now(), finish="abort")
                        )
            if command.mode == "wait" and self._engine.scheduler.running:
                self._settling.append((worker, command))
                return
        self._answer(worker, command)

    def _answer(self, worker: WorkerClient, command: EngineCommand) -> None:
        """Carries out a command. One that waited and was resumed meanwhile only gets its answer."""
        value, error = None, None
        try:
            if command.name not in ("pause", "sleep") or self._engine.scheduler.paused:
                value = self._carry_out(command)
        except (LLMError, EngineError) as failure:
            error = str(failure)
        worker.notices.append(CommandResult(number=command.number, value=value, error=error))

    def _carry_out(self, command: EngineCommand) -> bool | None:
        engine = self._engine
        match command.name:
            case "pause" if command.clear:
                engine.preempt_all()
                engine.cache.reset()
            case "resume" if not self._asleep:
                self.sleep_level, engine.scheduler.paused = None, False
            case "sleep":
                self.sleep(command.level)
            case "wake_up":
                with self._heartbeat.resting():
                    return self.wake_up(command.tags)
            case "reset_prefix_cache":
                if command.clear:  # also under requests, which are computed anew
                    engine.preempt_all()
                return engine.cache.reset()
        return None

    def sleep(self, level: int) -> None:
        """Puts the engine to sleep, or to a deeper level."""
        self.sleep_level = max(level, self.sleep_level or 0)
        if not level:
            return
        engine = self._engine
        engine.halted = True
        engine.preempt_all()
        engine.cache.reset()
        engine.runner.free(MEMORY - self._asleep)
        self._asleep = set(MEMORY)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Restores the parts named by `tags`, or all. Returns True, and resumes, when all parts are
        restored.

        Raises ModelLoadError when weights or memory are no longer available.
        """
        wanted = woken_by(tags, self._asleep)
        if "weights" in wanted:
            self._engine.runner.load_weights(self._reload())
            self._asleep.remove("weights")
        if "kv_cache" in wanted:
            self._engine.runner.make_cache()
            self._asleep.remove("kv_cache")
        self._engine.halted = bool(self._asleep)
        if not self._asleep:
            self.sleep_level, self._engine.scheduler.paused = None, False
        return not self._asleep

    # Notices.

    def _note_blocks(self, topic: str, sequence: int, batch: EventBatch) -> None:
        wanting = [worker for worker in self._workers.values() if worker.wants_kv_events]
        if wanting:
            blocks = PublishedEvents(topic, sequence, self._encode_events(batch))
            for worker in wanting:
                worker.notices.append(blocks)

    def _tell(self) -> None:
        self._told_s, engine = self._now(), self._engine
        step_tokens, engine.step_tokens = engine.step_tokens, 0  # each step is reported once
        load = EngineLoad(
            running=len(engine.scheduler.running),
            waiting=len(engine.scheduler.waiting.members),
            cache_usage=engine.cache.pool.usage,
            step_tokens=step_tokens,
            prefix_queries=engine.stats.prefix_queries,
            prefix_hits=engine.stats.prefix_hits,
            preemptions=engine.scheduler.preemptions,
            drafts=engine.stats.drafts,
            draft_tokens=engine.stats.draft_tokens,
            accepted=engine.stats.accepted,
            sleep_level=self.sleep_level,
            paused=engine.scheduler.paused,
        )
        for worker in list(self._workers.values()):
            try:
                self._socket.send_multipart(
                    [worker.name, self._encode([*worker.notices, load])], zmq.NOBLOCK
                )
            except (
                zmq.Again
            ):  # its choices end, and all but their unfinished parts waits for its next read
                if worker.keys:
                    logger.warning("a worker does not read: %d choices end", len(worker.keys))
                unread = worker.notices
                worker.notices = [
                    it for it in unread if not isinstance(it, EngineCoreOutput) or it.finish
                ]
                for key in list(worker.keys):
                    self._abort(worker, key)
                    self._fail(worker, key, "The server was too slow to take the reply.")
            except zmq.ZMQError:
                logger.info("a worker has left, with %d choices", len(worker.keys))
                for key in list(worker.keys):
                    self._abort(worker, key)
                self._settling = [it for it in self._settling if it[0] is not worker]
                del self._workers[worker.name]
            else:
                worker.notices = []

    def _end(self, error: str) -> None:
        self._heartbeat.stop()
        for worker in self._workers.values():
            for key in list(worker.keys):
                self._fail(worker, key, error)
        self._tell()
        if self._events is not None:
            self._events.close()


def start(options: EngineProcessOptions, socket: zmq.Socket[bytes]) -> EngineService:
    """Loads a model and returns its service.

    Raises ModelLoadError, with one line, for a failure of the model, and for options that do not
    fit.
    """
    path = find_model(options.model)
    checkpoint = load_checkpoint(path)
    model_len = checkpoint.config.max_position
    length = options.max_model_len or model_len
    if length > model_len:
        raise ModelLoadError(
            f"max_model_len is {length}, and the model was made for {model_len} tokens."
        )
    length = min(length, options.num_blocks * options.block_size)
    same = {name: getattr(options, name) for name in EngineSizes.__struct_fields__}
    publishes = options.kv_events is not None
    sizes = EngineOptions(**same, max_seq_length=length, kv_events=publishes, form_cpu_s=FORM_CPU_S)
    try:
        events = None if options.kv_events is None else EventSender(options.kv_events)
    except ValueError as error:
        raise ModelLoadError(f"The KV events cannot be published: {error}.") from error
    engine = assemble(path, checkpoint, options.device, options.dtype, sizes)
    heartbeat = Heartbeat(options.endpoint)
    return EngineService(engine, lambda: load_checkpoint(path), socket, events, heartbeat)
