"""The executor that sequences wait on: `max-num-seqs` slots and a waiting queue.

It keeps the contract of `concurrent.futures.Executor`, with slots instead of threads. A thread per
running sequence would only sleep (the timer wheel does the waiting), and a hop to it would cost more than
a short reply does. So a task starts in the turn that gives it a slot: the submitter's own turn when a slot
is free, else the turn in which another task leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import ParamSpec, Protocol, TypeVar, cast

from app.engine.waiting import WaitingQueue, Waits
from app.lora.adapters import LoRASlots

P = ParamSpec("P")
T = TypeVar("T")
MOST_AT_ONCE = 128
"""Tasks that start in one turn of the event loop, when many slots become free together."""
log = logging.getLogger(__name__)


class Task(Waits, Protocol):
    """What waits for a slot, and holds it."""

    def fits(self) -> bool:
        """Whether it could start now. If not, whoever is behind it waits, too."""

    def start(self) -> bool:
        """A slot is free. True keeps it until `SlotExecutor.leave`, False gives it back at once."""


class SlotExecutor(Executor):
    """Runs at most `slots` tasks at a time; `WaitingQueue` says who is next.

    One greenlet hub owns the state, so there is no lock. Nothing is started here that a fork could lose.
    `later`, if given, calls what it gets in a later turn of the event loop.
    """

    def __init__(
        self,
        slots: int,
        lora: LoRASlots | None = None,
        by_priority: bool = False,
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.slots = slots
        self.running = 0
        self.paused = False
        self._lora = LoRASlots(0, lambda adapter: False) if lora is None else lora
        self._queue: WaitingQueue[Task] = WaitingQueue(self._lora, by_priority)
        self._adapters: dict[Task, str] = {}
        """Which adapter a running task holds, if any: it may be unloaded before the task leaves."""
        self._later = later
        self._will_fill = False
        self._closed = False

    @property
    def waiting(self) -> int:
        """Tasks that have no slot yet."""
        return len(self._queue.tasks)

    def free(self, adapter: str | None = None) -> int:
        """Slots that tasks with this adapter would get at once."""
        if self.paused:
            return 0
        if adapter is not None and not (self._lora.is_ready(adapter) or self._lora.has_room()):
            return 0
        return self.slots - self.running

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Call `fn` as soon as a slot is free. RuntimeError after `shutdown`.

        If it returns a `Future`, that one's result is the result, and the slot is kept until it is done.
        """
        call: Call[T] = Call(partial(fn, *args, **kwargs), self)
        self.enter(call)
        return call

    def enter(self, task: Task, soon: bool = False) -> bool:
        """Start `task` as soon as a slot is free; True when that was now. RuntimeError after `shutdown`.

        With `soon` it starts in a later turn of the event loop: for those of which many come together.
        """
        if self._closed:
            raise RuntimeError("no new tasks after shutdown")
        if soon and self._later is not None:
            self._queue.add(task)
            self._fill_later()
            return False
        tasks = self._queue.tasks
        if not tasks and self.free(task.adapter) > 0 and task.fits():
            self._run(task)
            if tasks:  # somebody came while it ran, and found no slot
                self._fill()
            return True
        self._queue.add(task)
        self._fill()
        return task not in tasks

    def forget(self, task: Task | Future[T]) -> bool:
        """Take a task, or a future of `submit`, out of the queue; False when it does not wait."""
        if not self._queue.remove(cast(Task, task)):
            return False
        if isinstance(task, Future):
            task.cancel()
        return True

    def leave(self, task: Task) -> None:
        """A task that has kept its slot is over."""
        self._give_back(task)
        if self._queue.tasks:
            self._fill()

    def pause(self) -> None:
        """Give no more slots away; who has one keeps it."""
        self.paused = True

    def resume(self) -> None:
        """Give slots away again."""
        self.paused = False
        self._fill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; with `cancel_futures` drop those that wait."""
        self._closed = True
        if cancel_futures:
            for task in list(self._queue.tasks):
                self.forget(task)

    def _fill(self) -> None:
        started = 0
        while not self.paused and self.running < self.slots:
            if started == MOST_AT_ONCE and self._later is not None:
                self._fill_later()
                return
            task = self._queue.head()
            if task is None or not task.fits():
                return
            self._queue.take(task)
            started += 1
            self._run(task)

    def _fill_later(self) -> None:
        if self._later is not None and not self._will_fill:
            self._will_fill = True
            self._later(self._fill_now)

    def _fill_now(self) -> None:
        self._will_fill = False
        self._fill()

    def _run(self, task: Task) -> None:
        self.running += 1
        adapter = task.adapter
        if adapter is not None and self._lora.enter(adapter):
            self._adapters[task] = adapter
        keeps = False
        try:
            keeps = task.start()
        except Exception:
            log.exception("a task could not be started")
        if not keeps:
            self._give_back(task)

    def _give_back(self, task: Task) -> None:
        self.running -= 1
        if self._adapters and (adapter := self._adapters.pop(task, None)) is not None:
            self._lora.leave(adapter)


class Call(Future[T]):
    """A function call as a task: its own future."""

    adapter: str | None = None
    priority = 0

    def __init__(self, call: Callable[[], T | Future[T]], executor: SlotExecutor) -> None:
        super().__init__()
        self._call = call
        self._executor = executor

    def fits(self) -> bool:
        return True

    def start(self) -> bool:
        if not self.set_running_or_notify_cancel():
            return False
        try:
            result = self._call()
            if not isinstance(result, Future):
                self.set_result(result)
                return False
            if not result.done():
                result.add_done_callback(self._left)
                return True
        except Exception as error:
            self.set_exception(error)
            return False
        self._settle(result)
        return False

    def _left(self, done: Future[T]) -> None:
        # The slot is free before the result is there: who waits for it may submit again.
        self._executor.leave(self)
        self._settle(done)

    def _settle(self, done: Future[T]) -> None:
        try:
            self.set_result(done.result())
        except Exception as error:
            self.set_exception(error)
