"""The one way in which an API family writes events down."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from app.engine.outputs import EngineOutput


class Answer(Protocol):
    """One answer to one request. No other code knows a family's wire format."""

    def chunk(self, event: EngineOutput) -> bytes:
        """The server-sent events that tell of `event`; empty when there is nothing to tell."""

    def closing(self) -> bytes:
        """What ends the stream, after the last choice is over."""

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        """The whole JSON answer. Raises the error of a `Failed` event."""


ResponseWriter = Answer
