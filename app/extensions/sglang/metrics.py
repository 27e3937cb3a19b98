"""SGLang's metric families, next to vLLM's on the page of metrics.

`RequestMetrics` counts finished requests, `LoadMetrics` reads the loads of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from app.core.base.clock.pause import Slices
from app.core.base.metrics.instruments import Counter, Family, Gauge, Histogram
from app.core.server.middleware.stack import Middleware
from app.extensions.sglang.metric_table import COUNTERS, GAUGES, HISTOGRAMS

if TYPE_CHECKING:
    from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
    from app.core.extensions import ServerParts
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response
    from app.extensions.sglang.loads import LoadReader, RankLoad

PREFIX = "sglang:"
EVENT_STREAM = "text/event-stream"
NATURAL_ENDS = ("stop", "length")
SCHEDULER = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}
"""Labels of SGLang's schedulers: one process stands for all devices of a rank."""


class PlainFamily(Family[Counter | Histogram]):
    """A family without times of creation, which SGLang's exporter does not have."""

    def render(self) -> str:
        """Returns the family in the Prometheus text format."""
        self._tail = ""
        return super().render()


class FinishedRequest:
    """A finished sequence, until it is known whether its request was streamed."""

    def __init__(self, request: EngineRequest, outcome: SequenceOutcome) -> None:
        self.prompt_tokens = len(request.prompt_ids)
        self.arrival_s = request.arrival_s
        self.has_form = request.constraint is not None
        self.outcome = outcome


class RequestMetrics:
    """Counts finished requests of this port."""

    def __init__(self, server: Mapping[str, str]) -> None:
        """`server` has the labels of all series."""
        self._server = dict(server)
        self._families: dict[str, PlainFamily] = {}
        for name, text in COUNTERS.items():
            self._families[name] = PlainFamily(PREFIX + name, text, Counter, kind="counter")
        for name, (text, bounds) in HISTOGRAMS.items():
            create = partial(Histogram, bounds)
            self._families[name] = PlainFamily(PREFIX + name, text, create, kind="histogram")

    def render(self) -> str:
        """Returns the families in the Prometheus text format."""
        return "".join(family.render() for family in self._families.values())

    def count(self, finished: FinishedRequest, is_streaming: bool) -> None:
        """Counts a finished request."""
        outcome = finished.outcome
        streaming = {"is_streaming": str(is_streaming).lower()}
        cached = outcome.cached_tokens + outcome.fetched_tokens
        self._add("prompt_tokens_total", finished.prompt_tokens, streaming)
        self._add("generation_tokens_total", outcome.tokens, streaming)
        self._add("num_requests_total", 1, streaming)
        if cached:
            self._add("cached_tokens_total", cached, {"cache_source": "device"})
        if finished.has_form:
            self._add("num_so_requests_total", 1)
        if outcome.reason == "abort":
            self._add("num_aborted_requests_total", 1)
        self._observe("prompt_tokens_histogram", finished.prompt_tokens)
        self._observe("uncached_prompt_tokens_histogram", finished.prompt_tokens - cached)
        self._observe("generation_tokens_histogram", outcome.tokens)
        latency_s = outcome.ended_s - finished.arrival_s
        self._observe("e2e_request_latency_seconds", latency_s, streaming)
        if outcome.scheduled_s is not None:
            self._observe("queue_time_seconds", outcome.seconds().queue_s, SCHEDULER)
        self._count_tokens(finished, streaming)

    def _count_tokens(self, finished: FinishedRequest, streaming: Mapping[str, str]) -> None:
        """Counts the times of tokens: all gaps of a request count as equal."""
        outcome = finished.outcome
        first_s = outcome.first_token_s
        if first_s is None:
            return
        self._observe("time_to_first_token_seconds", first_s - finished.arrival_s, streaming)
        gaps = outcome.tokens - 1
        if gaps < 1:
            return
        gap_s = outcome.seconds().decode_s / gaps
        self._histogram("inter_token_latency_seconds", {}).observe(gap_s, gaps)
        if outcome.reason in NATURAL_ENDS:
            self._observe("request_time_per_output_token_seconds", gap_s, streaming)

    def _add(self, name: str, amount: float, labels: Mapping[str, str] | None = None) -> None:
        counter = self._families[name].labels(**self._server, **(labels or {}))
        assert isinstance(counter, Counter)
        counter.inc(amount)

    def _observe(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        self._histogram(name, labels or {}).observe(max(0.0, value))

    def _histogram(self, name: str, labels: Mapping[str, str]) -> Histogram:
        histogram = self._families[name].labels(**self._server, **labels)
        assert isinstance(histogram, Histogram)
        return histogram


class PendingCounts:
    """Finished sequences of one HTTP request; counted once its answer has begun."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics
        self._finished: list[FinishedRequest] = []
        self._is_streaming: bool | None = None

    def observe(self, request: EngineRequest) -> Watch:
        """Returns the watch of a sequence."""

        def watch(outcome: SequenceOutcome) -> None:
            finished = FinishedRequest(request, outcome)
            if self._is_streaming is None:
                self._finished.append(finished)
            else:
                self._metrics.count(finished, self._is_streaming)

        return watch

    def begin(self, is_streaming: bool) -> None:
        """Counts the finished sequences. Later ones are counted when they end."""
        self._is_streaming = is_streaming
        slices = Slices()  # even if the client leaves meanwhile
        for finished in self._finished:
            self._metrics.count(finished, is_streaming)
            slices.spend()
        self._finished.clear()


class RequestCounts(Middleware):
    """Observes the sequences of all requests."""

    def __init__(self, metrics: RequestMetrics) -> None:
        self._metrics = metrics

    def begin(self, context: RequestContext) -> None:
        """Adds the observer of the request's sequences."""
        if context.method in ("POST", "PUT"):
            counts = PendingCounts(self._metrics)
            context.keep(counts)
            context.observers = (*context.observers, counts.observe)

    def end(self, context: RequestContext, response: Response) -> None:
        """Counts sequences from now on: the content type shows whether the answer is a stream."""
        counts = context.kept(PendingCounts)
        if counts is not None:
            counts.begin(response.headers.get("Content-Type", "").startswith(EVENT_STREAM))


class LoadMetrics:
    """Gauges of each rank."""

    def __init__(self, parts: ServerParts, loads: LoadReader, server: Mapping[str, str]) -> None:
        self._parts = parts
        self._loads = loads
        self._server = dict(server)

    def render(self) -> str:
        """Returns the gauges in the Prometheus text format."""
        families: dict[str, Family[Gauge]] = {}
        for name, text in GAUGES.items():
            families[name] = Family(PREFIX + name, text, Gauge, kind="gauge")
        loads = self._loads.loads()
        for load in loads:
            labels = self._labels(load, several=len(loads) > 1)
            for name, value in self._values(load).items():
                families[name].labels(**labels).value = value
        return "".join(family.render() for family in families.values())

    def _labels(self, load: RankLoad, several: bool) -> dict[str, str]:
        labels = {**self._server, **SCHEDULER}
        if several:
            labels["dp_rank"] = str(load.dp_rank)
        return labels

    def _values(self, load: RankLoad) -> dict[str, float]:
        cache = self._parts.settings.kvcache
        return {
            "num_running_reqs": load.num_running_reqs,
            "num_queue_reqs": load.num_waiting_reqs,
            "num_grammar_queue_reqs": 0,
            "num_paused_reqs": 0,
            "gen_throughput": load.gen_throughput,
            "cache_hit_rate": load.cache_hit_rate,
            "token_usage": load.token_usage,
            "full_token_usage": load.token_usage,
            "num_used_tokens": load.num_used_tokens,
            "kv_used_tokens": load.num_used_tokens,
            "kv_available_tokens": max(0, load.max_total_num_tokens - load.num_used_tokens),
            "utilization": load.utilization,
            "max_total_num_tokens": load.max_total_num_tokens,
            "page_size": cache.block_size,
            "num_pages": cache.kv_cache_size,
            "context_len": self._parts.pipeline.limits.max_model_len,
        }


def server_labels(parts: ServerParts) -> dict[str, str]:
    """Returns the labels that all series have."""
    return {"model_name": parts.settings.model.served_names[0], "engine_type": "unified"}
