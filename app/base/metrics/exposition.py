"""The body of `GET /metrics`: one text with the families of the engine, of HTTP and of the process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from app.base.metrics.fake import FakeFamilies
from app.base.metrics.recorder import Recorder

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Families = Callable[[], str]
"""Returns the present text of some families."""


def engine_families(recorder: Recorder, fakes: FakeFamilies | None = None) -> Families:
    """Returns vLLM's families: the counts of `recorder`, or `fakes` while active."""
    return lambda: (fakes if fakes and fakes.active else recorder).render()


class Exposition:
    """Renders the text of `families` for a scrape, behind that of the Python and process families.

    The process families are read at most once per `process_age_s` seconds of `clock`: they read files of
    /proc and list all open connections, and a router may scrape every 50 ms.
    """

    def __init__(
        self,
        families: Sequence[Families],
        process: Families,
        clock: Callable[[], float] = time.monotonic,
        process_age_s: float = 5.0,
    ) -> None:
        self._families, self._process = families, process
        self._clock, self._process_age_s = clock, process_age_s
        self._process_text = ""
        self._process_due = float("-inf")

    def render(self) -> bytes:
        """Returns the text of all families in UTF-8, with content type `CONTENT_TYPE`."""
        now = self._clock()
        if now >= self._process_due:
            self._process_text = self._process()
            self._process_due = now + self._process_age_s
        return "".join((self._process_text, *(families() for families in self._families))).encode()
