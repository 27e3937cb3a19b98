"""The loop of the engine process.

`EngineService` receives orders of workers, computes a step, and sends each worker a message.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

import msgspec
import zmq
from msgspec.structs import asdict

from app.core.engine.errors import EngineError
from app.core.engine.kvcache.events import EventBatch, encoder
from app.core.engine.kvcache.publisher import EventSender
from app.core.engine.sleep import MEMORY, woken_by
from app.extensions.llm.config import Checkpoint
from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.errors import LLMError, RequestError
from app.extensions.llm.heartbeat import Heartbeat
from app.extensions.llm.sampling_params import SamplingParams
from app.extensions.llm.wire import (
    Abort,
    CommandResult,
    EngineCommand,
    EngineCoreOutput,
    EngineCoreRequest,
    EngineLoad,
    Hello,
    Notice,
    Order,
    PublishedEvents,
    Ready,
)
from config.untrusted import UntrustedDataError, decode_untrusted

if TYPE_CHECKING:
    from app.extensions.llm.llama_cpp.model_file import GGUFModel
    from app.extensions.llm.structured_output import FormMatcher

IDLE_SECONDS: Final = 1.0
"""Maximum wait for orders; afterwards workers get the load."""
COMPILING_SECONDS: Final = 0.005
"""Maximum wait for orders while a structured output is compiled."""
HOLD_SECONDS: Final = 0.1
"""Maximum wait of outputs that only continue awaited replies, and of the load after such steps.

Each message wakes the worker, on a core that computes.
"""
GATHER_MS: Final = 2
"""Maximum pause between two orders that end an idle time, in milliseconds.

Requests that a client sends at once then begin in the same step, and their decodes stay together. A
step of a small model takes some 10 ms.
"""
MAX_GATHERED: Final = 8
"""Maximum pauses that are waited for."""
MAX_MESSAGES: Final = 256
"""Maximum messages received at a time, so that a flood of orders does not stop the steps."""
COMPILER_THREADS: Final = 2
"""Threads that compile structured outputs, as a large schema takes seconds."""
PAUSING_COMMANDS: Final = ("pause", "sleep")

logger = logging.getLogger(__name__)


class WorkerClient:
    """A worker that has sent a message. Its requests' ids in the engine are (worker, key)."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.wants_kv_events = False
        self.keys: dict[int, bool] = {}
        """Keys of its unfinished requests, and whether the reply is awaited."""
        self.held: list[Notice] = []
        """Notices that may wait; they precede `notices` in the next message."""
        self.notices: list[Notice] = []
        """Content of the next message to the worker, which is sent after this step."""


RequestId: TypeAlias = tuple[WorkerClient, int]


class _Compilation(NamedTuple):
    """A request whose structured output is being compiled."""

    form: Future[FormMatcher]
    request: EngineCoreRequest


class EngineService:
    """Runs an engine for workers. Not thread-safe.

    A pause admits no more requests. Sleep level 0 only pauses; levels 1 and 2 free weights and KV
    cache, and weights are read from their files again. Requests continue afterwards and are
    computed anew; the prefix cache is emptied. `reload` reads the weights again, and raises
    ModelLoadError when it cannot.
    """

    def __init__(
        self,
        engine: LLMEngine,
        reload: Callable[[], Checkpoint | GGUFModel],
        socket: zmq.Socket[bytes],
        events: EventSender | None,
        heartbeat: Heartbeat,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._reload = reload
        self._socket = socket
        self._events = events
        self._heartbeat = heartbeat
        self._now = now
        self._ready = Ready(
            boot=secrets.token_hex(8),
            pid=os.getpid(),
            max_model_len=engine.inputs.max_tokens,
            num_blocks=engine.options.num_blocks,
            block_size=engine.options.block_size,
        )
        engine.pacer.on_layer = heartbeat.beat
        self._encode_events = encoder("map")
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoder = msgspec.msgpack.Decoder(list[Order])
        self._workers: dict[bytes, WorkerClient] = {}
        self._compilers = ThreadPoolExecutor(COMPILER_THREADS, "forms")
        self._compilations: dict[RequestId, _Compilation] = {}
        self._deferred_commands: list[tuple[WorkerClient, EngineCommand]] = []
        """Commands that wait until no request runs."""
        self._freed_memory: set[str] = set()
        self.sleep_level: int | None = None
        """None when awake."""
        self._refuses_requests = False
        """Workers reject new requests until a resume."""
        self._sent_s = -math.inf
        """Time of the latest messages to workers."""
        self._events_due_s = math.inf
        """Time when `events` has to run next."""
        self._is_stopping = False
        if events is not None:
            events.listen(self._add_kv_events)
            self._events_due_s = 0.0

    def stop(self) -> None:
        """Ends `run` after this step; safe in signal handlers."""
        self._is_stopping = True

    def run(self) -> None:
        """Runs until `stop`.

        Reraises errors of a step, after which the engine's state is unknown.
        """
        self._heartbeat.begin()
        try:
            while not self._is_stopping:
                wait_s = 0.0
                if self._engine.idle:
                    wait_s = self._wait_seconds()
                self.run_once(wait_s)
        except BaseException:
            self._end("The engine has failed.")
            raise
        self._end("The engine was stopped.")

    def run_once(self, timeout_s: float) -> None:
        """Waits at most `timeout_s` seconds for orders, carries them out and computes a step."""
        engine = self._engine
        self._heartbeat.beat()
        has_orders = self._take_orders(timeout_s)
        self._add_compiled()
        steps = engine.stats.steps
        self._add_outputs(engine.step())
        has_stepped = engine.stats.steps > steps
        if self._events is not None:
            if has_stepped:
                self._events.put(engine.cache.take_events())
            self._events_due_s = self._events.turn()
        if self._deferred_commands and not (engine.scheduler.running and engine.scheduler.paused):
            commands = self._deferred_commands
            self._deferred_commands = []
            for worker, command in commands:
                self._answer(worker, command)
        has_notices = any(worker.notices for worker in self._workers.values())
        max_wait_s = IDLE_SECONDS
        if has_stepped:
            max_wait_s = HOLD_SECONDS
        if has_orders or has_notices or self._now() >= self._sent_s + max_wait_s:
            self._send()
        elif has_stepped:
            load = self._load()
            for worker in self._workers.values():
                worker.held.append(load)
        if has_stepped and not engine.has_work:
            engine.runner.rest()

    def _add_outputs(self, outputs: Collection[Output]) -> None:
        """Adds the outputs of a step to the messages of their workers."""
        now_s = self._now()
        for sequence, update in outputs:
            worker, update.key = cast(RequestId, sequence.request_id)
            update.at_s = now_s
            is_awaited = worker.keys[update.key]
            if update.finish is not None:
                del worker.keys[update.key]
            elif is_awaited and update.scheduled_s is None:  # not the first output
                worker.held.append(update)
                continue
            worker.notices.append(update)

    def sleep(self, level: int) -> None:
        """Puts the engine to sleep, or to a deeper level."""
        self.sleep_level = max(level, self.sleep_level or 0)
        if not level:
            return
        engine = self._engine
        engine.halted = True
        engine.preempt_all()
        engine.cache.reset()
        engine.runner.free(MEMORY - self._freed_memory)
        self._freed_memory = set(MEMORY)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Restores the parts named by `tags`, or all.

        Returns True, and resumes, when all parts are restored.

        Raises:
            ModelLoadError: Weights or memory are no longer available.
        """
        restored = woken_by(tags, self._freed_memory)
        if "weights" in restored:
            self._engine.runner.load_weights(self._reload())
            self._freed_memory.remove("weights")
        if "kv_cache" in restored:
            self._engine.runner.make_cache()
            self._freed_memory.remove("kv_cache")
        self._engine.halted = bool(self._freed_memory)
        if self._freed_memory:
            return False
        self._resume()
        return True

    def _wait_seconds(self) -> float:
        limit_s = IDLE_SECONDS
        if self._compilations:
            limit_s = COMPILING_SECONDS
        return min(limit_s, max(0.0, self._events_due_s - self._now()))

    def _take_orders(self, timeout_s: float) -> bool:
        """Waits for orders and carries them out. Returns False if there were none."""
        was_idle = not self._engine.has_work
        if not self._socket.poll(round(timeout_s * 1000)):
            return False
        self._receive()
        if was_idle and self._engine.has_work:
            for _ in range(MAX_GATHERED):
                if not self._socket.poll(GATHER_MS):
                    break
                self._receive()
        return True

    def _receive(self) -> None:
        for _ in range(MAX_MESSAGES):
            try:
                name, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            worker = self._workers.setdefault(name, WorkerClient(name))
            try:
                orders = decode_untrusted(b"".join(frames), decoder=self._decoder)
            except UntrustedDataError as error:
                logger.warning("ignoring a message from a worker: %s", error)
                continue
            for order in orders:
                self._handle(worker, order)

    def _handle(self, worker: WorkerClient, order: Order) -> None:
        match order:
            case EngineCoreRequest():
                self._accept(worker, order)
            case Abort():
                for key in order.keys:
                    self._abort(worker, key)
            case EngineCommand():
                self._command(worker, order)
            case Hello():
                worker.wants_kv_events = order.kv_events
                worker.notices.append(self._ready)

    def _accept(self, worker: WorkerClient, request: EngineCoreRequest) -> None:
        key = request.key
        if key in worker.keys:
            logger.warning(
                "ignoring request %s: its key %d is already in use", request.request_id, key
            )
            return
        worker.keys[key] = request.is_awaited
        if request.form is None:
            self._add(worker, request)
        else:
            form = self._compilers.submit(self._engine.inputs.compile, request.form)
            self._compilations[worker, key] = _Compilation(form, request)

    def _add(
        self, worker: WorkerClient, request: EngineCoreRequest, form: FormMatcher | None = None
    ) -> None:
        try:
            params = SamplingParams(
                **asdict(request.sampling) | {"max_tokens": request.max_tokens},
                structured_outputs=request.form,
            )
            self._engine.add_request(
                (worker, request.key),
                request.prompt_ids,
                params=params,
                priority=request.priority,
                cache_salt=request.cache_salt,
                form=form,
            )
        except LLMError as error:
            is_refused = isinstance(error, RequestError)
            self._fail(worker, request.key, str(error), is_refused=is_refused)

    def _fail(self, worker: WorkerClient, key: int, error: str, is_refused: bool = False) -> None:
        worker.keys.pop(key, None)
        output = EngineCoreOutput(
            key=key, at_s=self._now(), finish="error", error=error, is_refused=is_refused
        )
        worker.notices.append(output)

    def _add_compiled(self) -> None:
        for request_id, (form, request) in list(self._compilations.items()):
            if not form.done():
                continue
            del self._compilations[request_id]
            worker, key = request_id
            error = form.exception()
            if error is None:
                self._add(worker, request, form.result())
                continue
            message = str(error)
            if not isinstance(error, RequestError):  # a panic of the library is a BaseException
                message = f"The form could not be compiled: {type(error).__name__}."
            self._fail(worker, key, message, is_refused=True)

    def _abort(self, worker: WorkerClient, key: int) -> None:
        self._engine.abort((worker, key))
        compilation = self._compilations.pop((worker, key), None)
        if compilation is not None:
            compilation.form.cancel()
        worker.keys.pop(key, None)

    def _command(self, worker: WorkerClient, command: EngineCommand) -> None:
        if command.name in PAUSING_COMMANDS:
            self._engine.scheduler.paused = True
            if command.name == "pause":
                self._refuses_requests = command.refuse
            if command.mode == "abort":
                self._abort_all()
            if command.mode == "wait" and self._engine.scheduler.running:
                self._deferred_commands.append((worker, command))
                return
        self._answer(worker, command)

    def _abort_all(self) -> None:
        for worker in self._workers.values():
            for key in list(worker.keys):
                self._abort(worker, key)
                output = EngineCoreOutput(key=key, at_s=self._now(), finish="abort")
                worker.notices.append(output)

    def _answer(self, worker: WorkerClient, command: EngineCommand) -> None:
        """Carries out a command, and adds its answer.

        A command that waited and was resumed meanwhile only gets its answer.
        """
        value = None
        error = None
        try:
            if command.name not in PAUSING_COMMANDS or self._engine.scheduler.paused:
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
            case "resume" if not self._freed_memory:
                self._resume()
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

    def _resume(self) -> None:
        self.sleep_level = None
        self._refuses_requests = False
        self._engine.scheduler.paused = False

    def _add_kv_events(self, topic: str, sequence: int, batch: EventBatch) -> None:
        workers = [worker for worker in self._workers.values() if worker.wants_kv_events]
        if workers:
            events = PublishedEvents(topic, sequence, self._encode_events(batch))
            for worker in workers:
                worker.notices.append(events)

    def _send(self) -> None:
        """Sends each worker its notices and the load of the engine."""
        self._sent_s = self._now()
        load = self._load()
        for worker in list(self._workers.values()):
            message = [worker.name, self._encode([*worker.held, *worker.notices, load])]
            worker.held = []
            try:
                self._socket.send_multipart(message, zmq.NOBLOCK)
            except zmq.Again:
                self._fail_slow_worker(worker)
            except zmq.ZMQError:
                self._forget(worker)
            else:
                worker.notices = []

    def _load(self) -> EngineLoad:
        engine = self._engine
        step_tokens = engine.step_tokens
        engine.step_tokens = 0  # each step is reported once
        return EngineLoad(
            running=len(engine.scheduler.running),
            waiting=len(engine.scheduler.waiting.members),
            cache_usage=engine.cache.pool.usage,
            step_tokens=step_tokens,
            prefix_queries=engine.stats.prefix_queries,
            prefix_hits=engine.stats.prefix_hits,
            preemptions=engine.scheduler.preemptions,
            drafts=engine.stats.drafts,
            draft_tokens=engine.stats.draft_tokens,
            accepted=dict(engine.stats.accepted),
            sleep_level=self.sleep_level,
            paused=engine.scheduler.paused,
            refuses_requests=self._refuses_requests,
        )

    def _fail_slow_worker(self, worker: WorkerClient) -> None:
        """Ends the choices of a worker that does not read.

        All notices but parts of unfinished choices wait until the worker reads again.
        """
        if worker.keys:
            logger.warning(
                "a worker is not reading its messages; ending its %d choices",
                len(worker.keys),
            )
        worker.notices = [
            notice
            for notice in worker.notices
            if not isinstance(notice, EngineCoreOutput) or notice.finish
        ]
        for key in list(worker.keys):
            self._abort(worker, key)
            self._fail(worker, key, "The server did not read the reply in time.")

    def _forget(self, worker: WorkerClient) -> None:
        logger.info("a worker disconnected while %d of its choices were running", len(worker.keys))
        for key in list(worker.keys):
            self._abort(worker, key)
        self._deferred_commands = [
            (sender, command) for sender, command in self._deferred_commands if sender is not worker
        ]
        del self._workers[worker.name]

    def _end(self, error: str) -> None:
        self._heartbeat.stop()
        for worker in self._workers.values():
            for key in list(worker.keys):
                self._fail(worker, key, error)
        self._send()
        if self._events is not None:
            self._events.close()
