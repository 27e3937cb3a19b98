"""Processes that run simulations, or parts of one, at once."""

import gc
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, Protocol, TypeVar

PARENT_CHECK_S = 0.5
"""Seconds between two checks of a worker that its parent still runs. The workers of loky have no
handle of their parent.
"""

Job = TypeVar("Job")
Result = TypeVar("Result")
Plan = TypeVar("Plan")


class Server(Protocol):
    """Answers messages in a process."""

    def answer(self, message: Any) -> object:
        """Returns the answer to a message."""


class Messages(Protocol):
    """A connection to a server."""

    def send(self, obj: Any) -> None:
        """Sends a message."""

    def recv(self) -> Any:
        """Waits for an answer, and returns it."""


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """Yields a pool for independent runs, or None for a single process.

    An exception in the block stops all runs.
    """
    if processes <= 1:
        yield None
        return
    # "spawn", as a fork would copy the threads and event loops of the caller.
    context = multiprocessing.get_context("spawn")
    earlier_children = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, exit_with_parent, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            for process in set(multiprocessing.active_children()) - earlier_children:
                process.terminate()
            raise


def map_jobs(
    pool: ProcessPoolExecutor | None, work: Callable[[Job], Result], jobs: Iterable[Job]
) -> Iterator[Result]:
    """Returns the results of `work` in the order of `jobs`, which a pool runs in parallel."""
    if pool is None:
        return map(work, jobs)
    # `pool.map` would cancel the jobs on Ctrl-C, and a pool that was shut down prints a traceback
    # for each canceled job.
    futures = [pool.submit(work, job) for job in jobs]
    return (future.result() for future in futures)


def map_large_jobs(
    pool: ProcessPoolExecutor | None,
    work: Callable[[Job], Result],
    jobs: Iterable[Job],
    max_pending: int,
) -> Iterator[Result]:
    """Yields the results of `work` in the order of `jobs`; makes at most `max_pending` at a time.

    A pool runs them in parallel.
    """
    if pool is None:
        yield from map(work, jobs)
        return
    pending: deque[Future[Result]] = deque()
    for job in jobs:
        pending.append(pool.submit(work, job))
        if len(pending) >= max_pending:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


@contextmanager
def server_processes(
    make_server: Callable[[Plan], Server], plans: Sequence[Plan]
) -> Iterator[list[Connection]]:
    """Yields connections to processes that make a server each; they end with the block."""
    context = multiprocessing.get_context("spawn")  # see `worker_pool`
    connections = []
    with ExitStack() as stack:
        for plan in plans:
            connection, other_end = context.Pipe()
            stack.enter_context(connection)
            arguments = (other_end, make_server, plan, os.getpid())
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.terminate)
            other_end.close()
            connections.append(connection)
        yield connections


def receive(connection: Messages) -> Any:
    """Returns the next answer of a server; raises the exception that ended it."""
    answer = connection.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(
    connection: Connection, make_server: Callable[[Plan], Server], plan: Plan, parent: int
) -> None:
    exit_with_parent(parent)
    try:
        with without_collector():
            server = make_server(plan)
            while True:
                connection.send(server.answer(connection.recv()))
    except EOFError:
        pass  # the parent has closed its end
    except Exception as error:
        connection.send(error)


@contextmanager
def without_collector() -> Iterator[None]:
    """Stops collections: they would find nothing, as millions of objects are in no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def exit_with_parent(parent: int) -> None:
    """Initializes a worker: it ignores Ctrl-C, and exits when the process `parent` has ended.

    Ctrl-C reaches all processes of the terminal, and the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_wait_for_end, args=(parent,), daemon=True).start()


def _wait_for_end(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)
