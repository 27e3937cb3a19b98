"""Clients that ask without a pause over kept connections."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from typing import Self

from tests.hostile.raw_client import Wire, ask, wait_until

CLIENTS = 8
LATENCY = {"SIM_TIME_TO_FIRST_TOKEN": "5ms", "SIM_INTER_TOKEN_LATENCY": "2ms"}


@dataclass
class Clients:
    """Threads that ask without a pause over kept connections, and reconnect only when they are told
    to.
    """

    connect: Callable[[], Wire]
    answered: int = 0
    closed: int = 0
    """Answers that announced the end of their connection."""
    lost: list[str] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(CLIENTS)
        ]
        for thread in self._threads:
            thread.start()
        self.wait_for_more(CLIENTS)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def wait_for_more(self, count: int) -> None:
        """Waits until more than `count` further requests were answered."""
        answered_before = self.answered
        wait_until(lambda: self.answered > answered_before + count)

    def _work(self, number: int) -> None:
        while not self._is_over.is_set():
            try:
                with self.connect() as wire:
                    self._ask_until_closed(wire, number)
            except (OSError, HTTPException, AssertionError) as error:
                self.lost.append(repr(error))

    def _ask_until_closed(self, wire: Wire, number: int) -> None:
        is_closed = False
        while not is_closed and not self._is_over.is_set():
            with closing(wire.post(ask(max_tokens=10, stream=number % 2 == 1)).begin()) as answer:
                body = answer.read()
                assert answer.status == 200, (answer.status, body)
                is_closed = answer.getheader("Connection") == "close"
            self.answered += 1
            self.closed += is_closed


@contextmanager
def asking(port: int) -> Iterator[Clients]:
    """Clients of a port during the block; none of their requests is lost."""
    with asking_over(partial(Wire, port)) as clients:
        yield clients


@contextmanager
def asking_over(connect: Callable[[], Wire]) -> Iterator[Clients]:
    """Clients with connections of `connect` during the block; none of their requests is lost."""
    with Clients(connect) as clients:
        yield clients
    assert clients.lost == []
