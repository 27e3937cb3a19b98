"""HTTP families count an exchange when its response has ended, through real WSGI calls."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import EnvironBuilder

from app.core.server.flask.application import Understudy
from app.core.server.http.context import CONTEXT, RequestContext, context_of
from app.core.server.http.response import Response
from app.core.server.http.route import Route, get, post
from app.core.server.middleware.http_metrics import HttpMetrics
from tests.application import app_of, application, empty_response

PROBES = ("/health", "/metrics", "/load", "/ping", "/version", "/ready", "/v1/load_lora_adapter")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> HttpMetrics:
    return HttpMetrics(clock=clock)


def routes(clock: Clock) -> Iterator[Route]:
    def stream(context: RequestContext) -> Response:
        def body() -> Iterator[bytes]:
            for _ in range(3):
                clock.now += 0.5
                yield b"data: x\n\n"

        return Response(body(), content_type="text/event-stream")

    def whole(context: RequestContext) -> Response:
        clock.now += 0.25
        return Response(b"{}")

    def model(context: RequestContext) -> Response:
        return Response("ünïcode".encode())

    def fails(context: RequestContext) -> Response:
        raise RuntimeError

    yield post("/v1/completions", stream)
    yield post("/v1/chat/completions", whole)
    yield get("/v1/models/{model}", model)
    yield get("/fails", fails)
    yield from (get(path, empty_response) for path in PROBES)


@pytest.fixture
def app(metrics: HttpMetrics, clock: Clock) -> Understudy:
    return application(routes(clock), metrics)


def ignore_head(status: str, headers: object, *exc_info: object) -> Callable[[bytes], None]:
    """A `start_response` whose `write` ignores its data."""
    return ignore_data


def ignore_data(data: bytes) -> None:
    """Ignores what an application writes."""


def start(app: Understudy, path: str, method: str = "GET", body: bytes | None = None) -> Any:
    """Begin a request that arrives at 100 s."""
    environ = EnvironBuilder(path=path, method=method, data=body).get_environ()
    environ[CONTEXT] = context_of(environ, 100.0)
    return app(environ, ignore_head)


def call(app: Understudy, path: str, method: str = "GET", body: bytes | None = None) -> None:
    end(start(app, path, method, body))


def end(response: Any) -> None:
    """Read it, and close it if it can be closed, as a server does."""
    b"".join(response)
    if hasattr(response, "close"):
        response.close()


def samples(metrics: HttpMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Label values in the order of label names -> value."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == name
    }


def test_stream_is_counted_with_its_full_duration_once_it_ends(
    app: Understudy, metrics: HttpMetrics
) -> None:
    response = start(app, "/v1/completions", "POST", b"12345")
    next(iter(response))
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 0}
    end(response)
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 1}
    assert samples(metrics, "http_request_duration_seconds_sum") == {
        ("/v1/completions", "POST"): 1.5
    }
    assert samples(metrics, "http_request_duration_highr_seconds_sum") == {(): 1.5}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/completions",): 27}
    assert samples(metrics, "http_request_size_bytes_sum") == {("/v1/completions",): 5}


def test_exchanges_are_counted_by_path_method_and_status(
    app: Understudy, metrics: HttpMetrics, clock: Clock
) -> None:
    for number in range(300):  # more than are noted before they are counted
        for path, body in (
            ("/v1/chat/completions", b"x" * (number % 3)),
            ("/v1/completions", b"12345"),
        ):
            clock.now = 100.0
            call(app, path, "POST", body)
    chats = ("/v1/chat/completions", "POST")
    completions = ("/v1/completions", "POST")
    assert samples(metrics, "http_requests_total") == {
        (*chats, "2xx"): 300,
        (*completions, "2xx"): 300,
    }
    assert samples(metrics, "http_request_duration_seconds_sum") == {chats: 75, completions: 450}
    assert samples(metrics, "http_request_duration_highr_seconds_sum") == {(): 525}
    assert samples(metrics, "http_request_duration_highr_seconds_count") == {(): 600}
    assert samples(metrics, "http_request_size_bytes_sum") == {
        chats[:1]: 300,
        completions[:1]: 1_500,
    }
    assert samples(metrics, "http_response_size_bytes_sum") == {
        chats[:1]: 600,
        completions[:1]: 8_100,
    }
    assert samples(metrics, "http_response_size_bytes_count") == {
        chats[:1]: 300,
        completions[:1]: 300,
    }


def test_client_disconnect_ends_the_measured_duration(
    app: Understudy, metrics: HttpMetrics
) -> None:
    response = start(app, "/v1/completions", "POST")
    next(iter(response))
    response.close()
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 1}
    assert samples(metrics, "http_request_duration_seconds_sum") == {
        ("/v1/completions", "POST"): 0.5
    }
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/completions",): 9}


@pytest.mark.parametrize(
    ("path", "method", "series"),
    [
        ("/nope", "GET", ("none", "GET", "4xx")),
        ("/v1/models/x", "HEAD", ("none", "HEAD", "4xx")),
        ("/v1/models/x/", "GET", ("/v1/models/{model}/", "GET", "3xx")),
        ("/fails", "GET", ("/fails", "GET", "5xx")),
        ("/nope", "BREW", ("none", "other", "4xx")),
    ],
)
def test_failed_requests_are_counted_by_path_method_and_status_class(
    app: Understudy, metrics: HttpMetrics, path: str, method: str, series: tuple[str, ...]
) -> None:
    call(app, path, method)
    assert samples(metrics, "http_requests_total") == {series: 1}


def test_unknown_paths_and_methods_share_one_series(app: Understudy, metrics: HttpMetrics) -> None:
    for index in range(50):
        call(app, f"/nope{index}", f"BREW{index}")
    assert samples(metrics, "http_requests_total") == {("none", "other", "4xx"): 50}


@pytest.mark.parametrize("path", [*PROBES, "/x/health"])
def test_health_probes_and_scrapes_are_not_counted(
    app: Understudy, metrics: HttpMetrics, path: str
) -> None:
    call(app, path)
    assert samples(metrics, "http_requests_total") == {}


@pytest.mark.parametrize("length", ["abc", "-5", "9" * 5000, ""])
def test_invalid_content_length_counts_as_zero(
    app: Understudy, metrics: HttpMetrics, length: str
) -> None:
    environ = EnvironBuilder(path="/nope").get_environ() | {"CONTENT_LENGTH": length}
    end(app(environ, ignore_head))
    assert samples(metrics, "http_request_size_bytes_sum") == {("none",): 0}


@pytest.mark.parametrize(
    ("flags", "tokens", "concurrency"),
    [
        (("--block-size=32", "--kv-cache-size=32768", "--max-model-len=2048"), "1048576", "512.0"),
        (
            ("--block-size=16", "--kv-cache-size=64", "--max-model-len=100"),
            "914",
            "9.142857142857142",
        ),
    ],
    ids=["as recorded from a real vLLM", "a context that does not fill its last block"],
)
def test_cache_config_labels_give_the_capacity_as_in_vllm(
    flags: tuple[str, ...], tokens: str, concurrency: str
) -> None:
    page = (
        app_of("--force-dummy-tokenizer", *flags)
        .test_client()
        .get("/metrics")
        .get_data(as_text=True)
    )
    families = {family.name: family for family in text_string_to_metric_families(page)}
    [sample] = families["vllm:cache_config_info"].samples
    capacity = sample.labels["kv_cache_size_tokens"], sample.labels["kv_cache_max_concurrency"]
    assert capacity == (tokens, concurrency)


@pytest.mark.parametrize(("version", "value"), [("0.32", None), ("0.33", "None")])
def test_cache_config_labels_depend_on_the_vllm_version(version: str, value: str | None) -> None:
    client = app_of("--force-dummy-tokenizer", "--vllm-version", version).test_client()
    page = client.get("/metrics").get_data(as_text=True)
    families = {family.name: family for family in text_string_to_metric_families(page)}
    [sample] = families["vllm:cache_config_info"].samples
    assert sample.labels.get("simple_cpu_offload_num_blocks") == value


def test_each_request_is_counted_once_by_internal_path(
    app: Understudy, metrics: HttpMetrics
) -> None:
    call(app, "/v1/chat/completions", "POST", b"{}")
    call(app, "/v1/models/any")
    served = samples(metrics, "understudy_requests_total")
    assert {way: count for (way,), count in served.items() if count} == {"flask": 2}
