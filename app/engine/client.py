"""The door to an engine, as everything above it sees it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from concurrent.futures import Future
from typing import Protocol

from app.engine.outputs import EngineOutput
from app.engine.request import EngineRequest
from app.metrics.recorder import Recorder

TakeToken = Callable[[str, int, float], None]
"""Takes the text, the id and the moment of a token: all there is to tell of one amid a plain text."""
Emit = Callable[[EngineOutput], TakeToken | None]
"""Takes an output, in the hub or in whatever greenlet brings it about: it must not wait.

It may answer a `Started` with what is to take the plain tokens of that choice from then on, each by itself:
of thousands of streams they come so often that nothing should be made for one.
"""


class Handle(Protocol):
    """What was submitted together: the choices of one request."""

    @property
    def future(self) -> Future[None]:
        """Done when all choices are over, however they ended. It cannot be cancelled."""

    def abort(self) -> None:
        """End what is not over. Nothing more is emitted."""


class EngineClient(Protocol):
    """An engine, wherever it runs."""

    @property
    def recorder(self) -> Recorder:
        """Where the engine counts."""

    @property
    def draining(self) -> bool:
        """True when nothing more is admitted."""

    @property
    def healthy(self) -> bool:
        """False while there is nobody who could compute."""

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""

    @property
    def waiting(self) -> int:
        """Sequences that have none yet."""

    def check_accepting(self, sequences: int) -> None:
        """Raise Draining, or TooManyRequests when `sequences` more would exceed `max-num-queued-reqs`."""

    def check_admission(self, sequences: int) -> None:
        """As `check_accepting`; also QueueFull when neither slots nor the waiting queue hold so many more."""

    def room(self, adapter: str | None = None) -> int:
        """How many sequences could be admitted now: slots and waiting queue hold so many more."""

    def submit(self, requests: Sequence[EngineRequest], emit: Emit) -> Handle:
        """Run `requests`, the choices of one request; some outputs may come before this returns.

        All or none are admitted. Raises any EngineError, and then nothing has begun.
        """

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """End the requests of these ids, or all; each choice finishes with `abort`. How many there were.

        They are in the metrics of finished requests if `counted`: vLLM counts those that its engine ends
        (pause, sleep), and no others.
        """

    def drain(self) -> None:
        """Admit nothing more; what was admitted goes on to its end."""
