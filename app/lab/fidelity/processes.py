"""Parallel simulations, one per process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from threading import Thread
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")
TELL_EVERY_S = 0.5


def cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def each(
    work: Callable[[Job], Result], jobs: Sequence[Job], processes: int, told: Callable[[], None]
) -> Iterator[tuple[int, Result]]:
    """Yields the number and the result of each job as it ends; calls `told` meanwhile.

    An exception in one job ends all jobs.
    """
    processes = min(processes, len(jobs))
    if processes <= 1:
        for number, job in enumerate(jobs):
            told()
            yield number, work(job)
        return
    # "spawn", as a fork would copy the threads and event loops of the caller.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, initializer=_depend) as pool:
        try:
            yield from _results({pool.submit(partial(work, job)): n for n, job in enumerate(jobs)}, told)
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            raise


def _results(running: dict[Future[Result], int], told: Callable[[], None]) -> Iterator[tuple[int, Result]]:
    while running:
        done, _ = wait(running, timeout=TELL_EVERY_S, return_when=FIRST_COMPLETED)
        told()
        for future in done:
            yield running.pop(future), future.result()


def _depend() -> None:
    """Makes a worker exit silently at Ctrl-C, which reaches the whole terminal, and with its parent."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(1))
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
