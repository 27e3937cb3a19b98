"""Interface of an engine for all code above it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import Protocol

from app.base.metrics.recorder import Recorder
from app.engine.core.outputs import EngineOutput
from app.engine.core.request import EngineRequest

TakeToken = Callable[[str, int, float], None]
"""Receives the text, id and due time of one plain token."""
Emit = Callable[[EngineOutput], TakeToken | None]
"""Receives an output, in the hub or in any greenlet; must not wait.

The answer to a `Started` may be a `TakeToken`, which receives the choice's plain tokens from then on.
Thousands of streams then cost no object per token.
"""


class Handle(Protocol):
    """Choices of one submitted request."""

    @property
    def future(self) -> Future[None]:
        """Future that is done when all choices have ended, in any way. The future cannot be cancelled."""

    def abort(self) -> None:
        """Ends unfinished choices. Nothing more is emitted."""


class EngineClient(Protocol):
    """An engine in this process or another."""

    @property
    def recorder(self) -> Recorder:
        """Recorder of the engine's metrics."""

    @property
    def draining(self) -> bool:
        """True once the engine admits no more requests."""

    @property
    def healthy(self) -> bool:
        """False while no engine can compute."""

    @property
    def running(self) -> int:
        """Number of sequences that hold a slot."""

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a slot."""

    def check_accepting(self, sequences: int) -> None:
        """Raises Draining, or TooManyRequests if `sequences` more would exceed `max-num-queued-reqs`."""

    def check_admission(self, sequences: int) -> None:
        """Checks as `check_accepting`; raises QueueFull when slots and queue cannot hold `sequences` more."""

    def room(self, adapter: str | None = None) -> int:
        """Returns how many sequences slots and waiting queue could admit now."""

    def submit(self, requests: Sequence[EngineRequest], emit: Emit) -> Handle:
        """Runs `requests`, the choices of one request; may emit outputs before returning.

        Admits all or none. Raises any EngineError before anything has begun.
        """

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """Ends the requests with these ids, or all, each choice with `abort`; returns the number of choices.

        A prompt with several choices adds one. With `counted` the choices enter the metrics of finished
        requests, as vLLM counts requests that its engine ends (pause, sleep).
        """

    def drain(self) -> None:
        """Admits no more requests; admitted ones run to their end."""
