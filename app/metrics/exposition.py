"""The answer of `GET /metrics`: the families of all rooms, of HTTP and of the process, as one text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from app.metrics.fake import FakeFamilies
from app.metrics.recorder import Recorder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Families = Callable[[], str]
"""Gives the text of some families, as they are now."""


class ServerMetrics(Protocol):
    """Counts the exchanges over HTTP, and looks at the process."""

    def text(self) -> str:
        """The text of the `http_` families."""

    def process_text(self) -> str:
        """The text of the families of Python and of the process."""


def engine_families(recorder: Recorder, fakes: FakeFamilies | None = None) -> Families:
    """vLLM's families: what `recorder` counted, or `fakes` while those are active."""
    return lambda: (fakes if fakes and fakes.active else recorder).render()


class Exposition:
    """Renders a scrape of `families`, and of those of `server`.

    The process families are read at most once per `process_age_s` seconds of `clock`: they take files of
    /proc and a list of all open connections, and a router may scrape every 50 ms.
    """

    def __init__(
        self,
        families: Sequence[Families],
        server: ServerMetrics,
        clock: Callable[[], float] = time.monotonic,
        process_age_s: float = 5.0,
    ) -> None:
        self._families, self._server = families, server
        self._clock, self._process_age_s = clock, process_age_s
        self._process_text = ""
        self._process_due = float("-inf")

    def render(self) -> bytes:
        """The text of all families, UTF-8, to be sent as `CONTENT_TYPE`."""
        now = self._clock()
        if now >= self._process_due:
            self._process_text = self._server.process_text()
            self._process_due = now + self._process_age_s
        texts = [families() for families in self._families]
        return "".join((self._process_text, *texts, self._server.text())).encode()
