"""A few threads for work that may take long or never end, and an answer in time whatever happens."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class WorkersBusy(Exception):
    """So much work waits that no more is taken."""


class Workers:
    """At most `count` threads, started when needed; they do not keep the process from ending.

    Under gevent they are greenlets. At most `most_waiting` calls wait for one.
    """

    def __init__(self, count: int, most_waiting: int = 1_000) -> None:
        if count < 1:
            raise ValueError("work needs a worker")
        self._count, self._threads, self._unfinished = count, 0, 0
        self._work: queue.Queue[tuple[Future[Any], Callable[[], Any]] | None] = queue.Queue(most_waiting)
        self._lock = threading.Lock()

    def call(self, function: Callable[[], T], timeout_s: float) -> T:
        """What `function` returns or raises.

        TimeoutError when that takes too long: it may then go on unheard. WorkersBusy when too many wait.
        """
        future: Future[T] = Future()
        try:
            self._work.put_nowait((future, function))
        except queue.Full:
            raise WorkersBusy from None
        self._staff()
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    def close(self) -> None:
        """Let the threads end when they have done what waits."""
        for _ in range(self._threads):
            with suppress(queue.Full):
                self._work.put_nowait(None)

    def _staff(self) -> None:
        """Start a thread if there is more work than threads: any of those may be stuck for good."""
        with self._lock:
            self._unfinished += 1
            if self._unfinished <= self._threads or self._threads >= self._count:
                return
            self._threads += 1
        threading.Thread(target=self._run, name="kvindex-tokenizer", daemon=True).start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, function = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
            with self._lock:
                self._unfinished -= 1
