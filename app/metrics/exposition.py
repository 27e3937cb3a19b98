"""What `GET /metrics` answers: vLLM's families, the HTTP families and those of the process, as one text."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from app.metrics.fake import FakeFamilies
from app.metrics.http import HttpMetrics
from app.metrics.recorder import Recorder

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class Exposition:
    """Renders a scrape; `fakes`, while active, stand in place of what `recorder` counted.

    The process families are read at most once per `process_age_s` seconds of `clock`: they take files of
    /proc and a list of all open connections, and a router may scrape every 50 ms.
    """

    def __init__(
        self,
        recorder: Recorder,
        http: HttpMetrics,
        clock: Callable[[], float] = time.monotonic,
        process_age_s: float = 5.0,
        fakes: FakeFamilies | None = None,
    ) -> None:
        self._recorder, self._http, self._fakes = recorder, http, fakes
        self._clock, self._process_age_s = clock, process_age_s
        self._process_text = ""
        self._process_due = float("-inf")

    def render(self) -> bytes:
        """The text of all families, UTF-8, to be sent as `CONTENT_TYPE`."""
        now = self._clock()
        if now >= self._process_due:
            self._process_text = self._http.process_text()
            self._process_due = now + self._process_age_s
        vllm = self._fakes if self._fakes and self._fakes.active else self._recorder
        return "".join((self._process_text, vllm.render(), self._http.families.render())).encode()
