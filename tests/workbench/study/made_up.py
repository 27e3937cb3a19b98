"""A made-up Prometheus: range queries over a fleet whose counters are known functions of time.

`python -m tests.workbench.study.made_up PORT PODS` serves it, for the benchmark of large fleets.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from app.core.base.metrics.families import token_bounds
from app.core.base.metrics.table import FIRST_TOKEN, INTER_TOKEN, REQUEST_LATENCY
from tests.http_server import Handler, Server

END_S = 1767312000.0
"""2026-01-02T00:00:00Z."""
MAX_POINTS = 11_000
BOUNDS: Mapping[str, Sequence[float]] = {
    "request_prompt_tokens": token_bounds(8192),
    "request_generation_tokens": token_bounds(8192),
    "time_to_first_token_seconds": FIRST_TOKEN,
    "request_time_per_output_token_seconds": INTER_TOKEN,
    "e2e_request_latency_seconds": REQUEST_LATENCY,
    "request_queue_time_seconds": REQUEST_LATENCY,
    "request_prefill_time_seconds": REQUEST_LATENCY,
    "request_decode_time_seconds": REQUEST_LATENCY,
}
MEANS = {
    "request_prompt_tokens": 700.0,
    "request_generation_tokens": 150.0,
    "time_to_first_token_seconds": 0.25,
    "request_time_per_output_token_seconds": 0.02,
    "e2e_request_latency_seconds": 3.25,
    "request_queue_time_seconds": 0.05,
    "request_prefill_time_seconds": 0.2,
    "request_decode_time_seconds": 3.0,
}
COUNTERS = {
    "prompt_tokens_total": 700.0,
    "generation_tokens_total": 150.0,
    "num_preemptions_total": 0.01,
    "prefix_cache_queries_total": 700.0,
    "prefix_cache_hits_total": 280.0,
}
GAUGES = {"num_requests_running": 3.0, "num_requests_waiting": 1.0, "kv_cache_usage_perc": 0.25}
METRIC = re.compile(r"^\{__name__=~\"([^\"]*)\"|^([\w:]+)")
MATCHER = re.compile(r"(\w+)(=~|=)\"((?:[^\"\\]|\\.)*)\"")


@dataclass
class Pod:
    """A pod, which serves `rate` requests a second while it is there."""

    name: str
    rate: float = 2.0
    starts: Sequence[float] = (0.0,)
    """Times of the starts of its process."""
    end_s: float = 1e12
    gaps: Sequence[tuple[float, float]] = ()
    """Spans without samples."""
    model: str = "m"
    labels: Mapping[str, str] = field(default_factory=dict)

    def start_of(self, time_s: float) -> float | None:
        """The start of the process that runs at a time; None where there is no sample."""
        if time_s > self.end_s or any(start < time_s < end for start, end in self.gaps):
            return None
        return max((start for start in self.starts if start <= time_s), default=None)

    def requests(self, start_s: float, time_s: float) -> int:
        """Requests that ended since a start."""
        begin_s = max(start_s, END_S - 10 * 86_400)
        return int(self.rate * (time_s - begin_s))


class Fleet:
    """Answers range queries."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        self.pods = pods
        self.queries: list[str] = []

    def series(self, query: str, times: Sequence[float]) -> Iterator[tuple[dict[str, str], str]]:
        """Yields labels, and the JSON of the values."""
        match = METRIC.match(query)
        assert match is not None, query
        names = set((match[1] or match[2]).split("|"))
        inside = query[query.index("{") : query.rindex("}")] if "{" in query else ""
        matchers = [each for each in MATCHER.findall(inside) if each[0] != "__name__"]
        for pod in self.pods:
            labels = {
                "namespace": "prod",
                "pod": pod.name,
                "instance": f"10.0.0.1:{pod.name}",
                "job": "vllm",
                "model_name": pod.model,
                "engine": "0",
                **pod.labels,
            }
            if not all(
                re.fullmatch(value.replace("\\\\", "\\"), labels.get(name, ""))
                if operator == "=~"
                else labels.get(name, "") == value
                for name, operator, value in matchers
            ):
                continue
            yield from self._of_pod(pod, labels, names, times)

    def _of_pod(
        self, pod: Pod, labels: dict[str, str], names: set[str], times: Sequence[float]
    ) -> Iterator[tuple[dict[str, str], str]]:
        points = []
        for time_s in times:
            start_s = pod.start_of(time_s)
            if start_s is not None:
                points.append((repr(time_s), start_s, time_s))
        if not points:
            return
        counts = [pod.requests(start_s, time_s) for _, start_s, time_s in points]
        texts = [text for text, _, _ in points]

        def values(factor: float) -> str:
            body = ",".join(
                f'[{text},"{count * factor:.10g}"]'
                for text, count in zip(texts, counts, strict=True)
            )
            return f"[{body}]"

        for metric, bounds in BOUNDS.items():
            name = f"vllm:{metric}"
            if f"{name}_count" in names:
                yield {"__name__": f"{name}_count", **labels}, values(1)
            if f"{name}_sum" in names:
                yield {"__name__": f"{name}_sum", **labels}, values(MEANS[metric])
            if f"{name}_bucket" in names:
                for bound in bounds:
                    share = float(bound >= MEANS[metric])
                    labeled = {"__name__": f"{name}_bucket", **labels, "le": f"{float(bound)}"}
                    yield labeled, values(share)
                labeled = {"__name__": f"{name}_bucket", **labels, "le": "+Inf"}
                yield labeled, values(1)
        for metric, factor in COUNTERS.items():
            if f"vllm:{metric}" in names:
                yield {"__name__": f"vllm:{metric}", **labels}, values(factor)
        if "vllm:request_success_total" in names:
            for reason, share in (("stop", 0.75), ("length", 0.25)):
                labeled = {"__name__": "vllm:request_success_total", **labels}
                yield {**labeled, "finished_reason": reason}, values(share)
        for metric, value in GAUGES.items():
            if f"vllm:{metric}" in names:
                body = ",".join(f'[{text},"{value}"]' for text in texts)
                yield {"__name__": f"vllm:{metric}", **labels}, f"[{body}]"
        if "vllm:prompt_tokens_created" in names:
            body = ",".join(f'[{text},"{start_s!r}"]' for text, start_s, _ in points)
            yield {"__name__": "vllm:prompt_tokens_created", **labels}, f"[{body}]"
        if "vllm:cache_config_info" in names:
            config = {"block_size": "16", "num_gpu_blocks": "9000", "cache_dtype": "auto"}
            plain = {name: value for name, value in labels.items() if name != "model_name"}
            body = ",".join(f'[{text},"1"]' for text in texts)
            yield {"__name__": "vllm:cache_config_info", **plain, **config}, f"[{body}]"

    def answer(self, parameters: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of /api/v1/query_range."""
        start_s = float(parameters["start"])
        end_s = float(parameters["end"])
        step_s = float(parameters["step"])
        self.queries.append(parameters["query"])
        points = int((end_s - start_s) / step_s + 1e-6) + 1
        if points > MAX_POINTS:
            return 400, error("exceeded maximum resolution of 11,000 points per timeseries.")
        times = [round(start_s + index * step_s, 3) for index in range(points)]
        parts = [
            f'{{"metric":{json.dumps(labels)},"values":{values}}}'
            for labels, values in self.series(parameters["query"], times)
        ]
        body = (
            f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(parts)}]}}}}'
        )
        return 200, body.encode()


def error(reason: str) -> bytes:
    """The body of an error, as Prometheus writes it."""
    return json.dumps({"status": "error", "errorType": "bad_data", "error": reason}).encode()


def handler_of(fleet: Fleet) -> type[Handler]:
    """The handler that answers for a fleet."""

    class PrometheusHandler(Handler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path != "/api/v1/query_range":
                self.reply(200)
                return
            parameters = {name: values[0] for name, values in parse_qs(parts.query).items()}
            status, body = fleet.answer(parameters)
            self.reply(status, body, Content_Type="application/json")

    return PrometheusHandler


def large_fleet(pods: int) -> Fleet:
    """A fleet of which some pods restart, come, and go."""
    start_s = END_S - 86_400
    made = []
    for number in range(pods):
        pod = Pod(f"pod-{number}", rate=1.0 + number % 5 / 4)
        if number % 10 == 3:
            pod.starts = (0.0, start_s + 3600.0 * (1 + number % 20) + 17)
        if number % 10 == 5:
            pod.starts = (start_s + 600.0 * (1 + number) + 29,)
        if number % 10 == 7:
            pod.end_s = END_S - 600.0 * (1 + number) - 11
        made.append(pod)
    return Fleet(made)


if __name__ == "__main__":
    with Server(
        ("127.0.0.1", int(sys.argv[1])), handler_of(large_fleet(int(sys.argv[2])))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        thread.join()
