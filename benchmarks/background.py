"""Streams that run in a process of their own, while this one looks at the server from another side."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import cores
from benchmarks.streams import StreamPlan, StreamRun, play


@dataclass(frozen=True, slots=True)
class Background:
    """A process that is already there."""

    pool: ProcessPoolExecutor

    def play(self, plan: StreamPlan) -> Future[StreamRun]:
        """Begin a run; its result is there when it has ended."""
        return self.pool.submit(play, plan)


@contextmanager
def background() -> Iterator[Background]:
    """A second client on the client's core."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        pool.submit(cores.pin_client).result()
        yield Background(pool)
