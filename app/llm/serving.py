"""What the engine's process does: orders of all workers in, a step, one message to each worker out."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from app.engine.errors import EngineError
from app.engine.heartbeat import Heartbeat
from app.engine.wire import (
    Abort,
    Answer,
    Blocks,
    Command,
    EngineCoreOutput,
    EngineCoreRequest,
    Hello,
    Load,
    Notice,
    Order,
    Ready,
)
from app.kvcache.event_sender import EventSender
from app.kvcache.events import EventBatch, encoder
from app.llm.engine import LLMEngine
from app.llm.errors import LLMError, RequestError
from app.llm.lifecycle import Lifecycle
from app.llm.requests import EngineOutput, failed, request_of, said_of
from app.llm.sampler import Form
from app.llm.worker_sockets import WorkerSockets

IDLE_S: Final = 1.0
"""How long it waits for orders before it looks around."""
COMPILING_S: Final = 0.005
"""The same, while a form is compiled."""
FORMS_AT_ONCE: Final = 2
"""A large schema takes seconds to compile, in which others are served, and other forms compiled."""

logger = logging.getLogger(__name__)


class Worker:
    """One that has sent something."""

    __slots__ = ("keys", "name", "notices", "number", "wants_kv_events")

    def __init__(self, name: bytes, number: int) -> None:
        self.name, self.number = name, number
        self.keys: set[int] = set()
        """Of its choices that are not over."""
        self.notices: list[Notice] = []
        """What it is to be told next."""
        self.wants_kv_events = False

    def request_id(self, key: int) -> str:
        """What the engine calls a choice."""
        return f"{self.number} {key}"


class EngineService:
    """Runs an engine for workers; not for several threads."""

    def __init__(
        self,
        engine: LLMEngine,
        lifecycle: Lifecycle,
        sockets: WorkerSockets,
        events: EventSender | None,
        ready: Ready,
        heartbeat: Heartbeat,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._lifecycle, self._sockets = engine, lifecycle, sockets
        self._events, self._ready, self._heartbeat, self._now = events, ready, heartbeat, now
        engine.runner.on_layer = heartbeat.beat
        self._encode = encoder("map")
        if events is not None:
            events.listen(self._note_blocks)
        self._workers: dict[bytes, Worker] = {}
        self._numbers = 0
        self._owners: dict[str, tuple[Worker, int]] = {}
        """Whose a request of the engine is, and by which key."""
        self._compilers = ThreadPoolExecutor(FORMS_AT_ONCE, "forms")
        self._uncompiled: dict[str, tuple[Future[Form], EngineCoreRequest]] = {}
        """Requests that wait for their forms."""
        self._settling: list[tuple[Worker, Command]] = []
        """Commands that wait until nothing runs."""
        self._told_s = -math.inf
        self._is_due = False
        """Workers are to be told before they would be otherwise."""
        self._stopping = False

    def stop(self) -> None:
        """End after this step; may be called by a signal."""
        self._stopping = True

    def run(self) -> None:
        """Until `stop`. What a step raises is raised here: nothing is known of the engine's state then."""
        due_s = 0.0
        self._heartbeat.begin()
        try:
            while not self._stopping:
                rest_s = min(COMPILING_S if self._uncompiled else IDLE_S, max(0.0, due_s - self._now()))
                self.turn(rest_s if self._engine.idle else 0.0)
                due_s = math.inf if self._events is None else self._events.turn()
                if self._is_due:
                    self._tell()
        except BaseException:
            self._end("The engine has failed.")
            raise
        self._end("The engine was stopped.")

    def turn(self, timeout_s: float) -> None:
        """Do what was ordered, then a step; waits so long for orders."""
        self._heartbeat.beat()
        orders = self._sockets.receive(timeout_s)
        for name, listed in orders:
            worker = self._worker(name)
            for order in listed:
                self._do(worker, order)
        refused = self._add_compiled()
        steps = self._engine.stats.steps
        self._note(self._engine.step())
        stepped = self._engine.stats.steps > steps
        if stepped and self._events is not None:
            self._events.put(self._engine.take_events())
        self._settle()
        if orders or refused or stepped or self._now() >= self._told_s + IDLE_S:
            self._tell()

    def _worker(self, name: bytes) -> Worker:
        worker = self._workers.get(name)
        if worker is None:
            self._numbers += 1
            worker = self._workers[name] = Worker(name, self._numbers)
        return worker

    # Orders.

    def _do(self, worker: Worker, order: Order) -> None:
        match order:
            case EngineCoreRequest():
                self._generate(worker, order)
            case Abort():
                for key in order.keys:
                    self._abort(worker, key)
            case Command():
                self._command(worker, order)
            case Hello():
                worker.wants_kv_events = order.kv_events
                worker.notices.append(self._ready)

    def _generate(self, worker: Worker, order: EngineCoreRequest) -> None:
        if order.key in worker.keys:
            logger.warning("request %s is ignored: its key %d is in use", order.request_id, order.key)
            return
        request_id = worker.request_id(order.key)
        worker.keys.add(order.key)
        self._owners[request_id] = worker, order.key
        if order.form is not None:
            self._uncompiled[request_id] = self._compilers.submit(self._engine.compile, order.form), order
        else:
            self._add(request_id, order)

    def _add(self, request_id: str, order: EngineCoreRequest, form: Form | None = None) -> None:
        try:
            self._engine.add(request_of(request_id, order), form)
        except LLMError as error:
            self._refuse(request_id, str(error), isinstance(error, RequestError))

    def _refuse(self, request_id: str, error: str, is_refused: bool = True) -> None:
        worker, key = self._owners.pop(request_id)
        worker.keys.remove(key)
        refusal = failed(key, error, self._now())
        refusal.is_refused = is_refused
        worker.notices.append(refusal)

    def _add_compiled(self) -> bool:
        """Those whose forms are there go on; whether one was refused."""
        done = [it for it, (form, _) in self._uncompiled.items() if form.done()]
        for request_id in done:
            form, order = self._uncompiled.pop(request_id)
            error = form.exception()
            if error is None:
                self._add(request_id, order, form.result())
            elif isinstance(error, RequestError):
                self._refuse(request_id, str(error))
            else:  # a panic of the library is not even an Exception
                self._refuse(request_id, f"The form could not be compiled: {type(error).__name__}.")
        return bool(done)

    def _abort(self, worker: Worker, key: int) -> None:
        request_id = worker.request_id(key)
        self._engine.abort(request_id)
        if request_id in self._uncompiled:
            self._uncompiled.pop(request_id)[0].cancel()
        self._owners.pop(request_id, None)
        worker.keys.discard(key)

    # Commands.

    def _command(self, worker: Worker, command: Command) -> None:
        if command.name in ("pause", "sleep") and self._must_settle(command):
            self._settling.append((worker, command))
            return
        try:
            value = self._carry_out(command)
        except (LLMError, EngineError) as error:
            worker.notices.append(Answer(number=command.number, error=str(error)))
        else:
            worker.notices.append(Answer(number=command.number, value=value))

    def _must_settle(self, command: Command) -> bool:
        """Treat what runs as a pause says; whether it has to be awaited."""
        self._lifecycle.pause()
        if command.mode == "abort":
            for worker, key in list(self._owners.values()):
                self._abort(worker, key)
                worker.notices.append(EngineCoreOutput(key=key, at_s=self._now(), finish="abort"))
        return command.mode == "wait" and self._engine.num_running > 0

    def _carry_out(self, command: Command) -> bool | None:
        match command.name:
            case "pause":
                self._lifecycle.pause()
                if command.clear:
                    self._clear_cache()
            case "resume":
                self._lifecycle.resume()
            case "sleep":
                self._lifecycle.sleep(command.level)
            case "wake_up":
                with self._heartbeat.resting():
                    return self._lifecycle.wake_up(command.tags)
            case "reset_prefix_cache":
                return self._clear_cache() if command.clear else self._engine.reset_prefix_cache()
        return None

    def _clear_cache(self) -> bool:
        """Empty the cache; what runs is computed anew."""
        self._engine.preempt_all()
        return self._engine.reset_prefix_cache()

    def _settle(self) -> None:
        """Go on with commands that wait, as soon as nothing runs, or somebody has resumed."""
        if not self._settling or (self._engine.num_running and self._lifecycle.paused):
            return
        settling, self._settling = self._settling, []
        for worker, command in settling:
            error = None
            if self._lifecycle.paused:
                try:
                    self._carry_out(command)
                except (LLMError, EngineError) as failure:
                    error = str(failure)
            worker.notices.append(Answer(number=command.number, error=error))

    # Notices.

    def _note(self, outputs: list[EngineOutput]) -> None:
        """Of what a step has brought."""
        now_s = self._now()
        for output in outputs:
            worker, key = self._owners[output.request_id]
            worker.notices.append(said_of(key, output, now_s))
            if output.finish_reason is not None:
                del self._owners[output.request_id]
                worker.keys.remove(key)

    def _note_blocks(self, topic: str, sequence: int, batch: EventBatch) -> None:
        """Of KV events that are published."""
        wanting = [worker for worker in self._workers.values() if worker.wants_kv_events]
        if wanting:
            blocks = Blocks(topic, sequence, self._encode(batch))
            for worker in wanting:
                worker.notices.append(blocks)
            self._is_due = True

    def _tell(self) -> None:
        """Every worker gets a message, by which it is seen, too, who is no longer there."""
        self._told_s, self._is_due = self._now(), False
        load = self._load()
        for worker in list(self._workers.values()):
            match self._sockets.send(worker.name, [*worker.notices, load]):
                case "sent":
                    worker.notices = []
                case "full":
                    self._give_up(worker)
                case "gone":
                    self._lose(worker)

    def _load(self) -> Load:
        engine = self._engine
        step_tokens, engine.step_tokens = engine.step_tokens, 0  # each step is told once
        return Load(
            running=engine.num_running,
            waiting=engine.num_waiting,
            cache_usage=engine.cache.usage,
            step_tokens=step_tokens,
            prefix_queries=engine.stats.prefix_queries,
            prefix_hits=engine.stats.prefix_hits,
            preemptions=engine.scheduler.preemptions,
            sleep_level=self._lifecycle.level,
            paused=self._lifecycle.paused,
        )

    def _give_up(self, worker: Worker) -> None:
        """It has not read for long: its choices end, which it is told as soon as it reads."""
        if worker.keys:
            logger.warning("worker %d does not read: %d choices end", worker.number, len(worker.keys))
        whole = [it for it in worker.notices if not isinstance(it, EngineCoreOutput) or it.finish is not None]
        late = [failed(key, "The server was too slow to take the reply.", self._now()) for key in worker.keys]
        for key in list(worker.keys):
            self._abort(worker, key)
        worker.notices = [*whole, *late]

    def _lose(self, worker: Worker) -> None:
        """It is gone: what it has ordered ends."""
        logger.info("worker %d has left, with %d choices", worker.number, len(worker.keys))
        for key in list(worker.keys):
            self._abort(worker, key)
        self._settling = [(asker, command) for asker, command in self._settling if asker is not worker]
        del self._workers[worker.name]

    def _end(self, error: str) -> None:
        """Nobody is left to wait for a word."""
        self._heartbeat.stop()
        for worker in self._workers.values():
            worker.notices += [failed(key, error, self._now()) for key in worker.keys]
        self._tell()
        self._sockets.close()
        if self._events is not None:
            self._events.close()
