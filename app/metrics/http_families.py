"""The HTTP families that vLLM exposes (vllm-api.md 11.4) and the series of one kind of exchange."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from app.metrics.instruments import Counter, Histogram, Instrument, Summary
from app.metrics.text import Family

HIGH_RESOLUTION = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60),
)
LOW_RESOLUTION = (0.1, 0.5, 1)

InstrumentT = TypeVar("InstrumentT", bound=Instrument)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The series that one exchange of a (method, handler, status class) adds to."""

    requests: Counter
    request_bytes: Summary
    response_bytes: Summary
    seconds_high: Histogram
    seconds: Histogram

    def observe(self, seconds: float, request_bytes: int, response_bytes: int) -> None:
        self.requests.inc()
        self.request_bytes.observe(request_bytes)
        self.response_bytes.observe(response_bytes)
        self.seconds_high.observe(seconds)
        self.seconds.observe(seconds)


class HttpFamilies:
    """`http_*` families; series appear with the first exchange that they count. `now` gives Unix seconds."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        def family(name: str, help: str, create: Callable[[], InstrumentT], kind: str) -> Family[InstrumentT]:
            return Family(name, help, create, kind, now)

        low, high = partial(Histogram, LOW_RESOLUTION), partial(Histogram, HIGH_RESOLUTION)
        self._requests = family(
            "http_requests_total", "Requests by method, class of status and route.", Counter, "counter"
        )
        self._request_bytes = family(
            "http_request_size_bytes", "Declared size of request bodies by route.", Summary, "summary"
        )
        self._response_bytes = family(
            "http_response_size_bytes", "Size of response bodies by route.", Summary, "summary"
        )
        self._seconds_high = family(
            "http_request_duration_highr_seconds",
            "From arrival to the end of the response, all routes, in fine buckets.",
            high,
            "histogram",
        )
        self._seconds = family(
            "http_request_duration_seconds",
            "From arrival to the end of the response by method and route, in coarse buckets.",
            low,
            "histogram",
        )
        self._served = family(
            "understudy_requests_total", "Requests by the way that served them.", Counter, "counter"
        )
        self.by_way = self._served.labels(way="flask"), self._served.labels(way="fast")
        self._seconds_high.labels()  # it has no labels, so it is there before the first request

    def exchange(self, method: str, handler: str, status: int) -> Exchange:
        """The series for a method, a handler label and a status code."""
        return Exchange(
            self._requests.labels(method=method, status=f"{status // 100}xx", handler=handler),
            self._request_bytes.labels(handler=handler),
            self._response_bytes.labels(handler=handler),
            self._seconds_high.labels(),
            self._seconds.labels(method=method, handler=handler),
        )

    def render(self) -> str:
        """The text of all families."""
        sizes = self._request_bytes, self._response_bytes
        families = self._requests, *sizes, self._seconds_high, self._seconds, self._served
        return "".join(family.render() for family in families)
