"""HTTP families count an exchange when its response has ended, through real WSGI calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask, Response
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import EnvironBuilder

from app.middleware.http_metrics import HttpMetrics


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


@pytest.fixture
def app(metrics: HttpMetrics, clock: Clock) -> Flask:
    app = Flask("counted")
    metrics.init_app(app)

    @app.post("/v1/completions")
    def stream() -> Response:
        def body() -> Iterator[bytes]:
            for _ in range(3):
                clock.now += 0.5
                yield b"data: x\n\n"

        return Response(body(), mimetype="text/event-stream")

    @app.post("/v1/chat/completions")
    def whole() -> Response:
        clock.now += 0.25
        return Response(b"{}")

    @app.get("/v1/models/<path:model>")
    def model(model: str) -> str:
        return "ünïcode"

    @app.get("/fails")
    def fails() -> str:
        raise RuntimeError

    for path in ("/health", "/metrics", "/load", "/ping", "/version", "/ready", "/v1/load_lora_adapter"):
        app.add_url_rule(path, path, lambda: "")
    return app


def start(app: Flask, path: str, method: str = "GET", body: bytes | None = None) -> Any:
    environ = EnvironBuilder(path=path, method=method, data=body).get_environ()
    return app(environ, lambda status, headers, *rest: lambda data: None)


def call(app: Flask, path: str, method: str = "GET", body: bytes | None = None) -> None:
    response = start(app, path, method, body)
    b"".join(response)
    response.close()


def samples(metrics: HttpMetrics, name: str) -> dict[tuple[str, ...], float]:
    """Label values in the order of label names -> value."""
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text())
        for sample in family.samples
        if sample.name == name
    }


def test_a_stream_lasts_until_its_end(app: Flask, metrics: HttpMetrics) -> None:
    response = start(app, "/v1/completions", "POST", b"12345")
    next(iter(response))
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 0}
    b"".join(response)
    response.close()
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 1}
    assert samples(metrics, "http_request_duration_seconds_sum") == {("/v1/completions", "POST"): 1.5}
    assert samples(metrics, "http_request_duration_highr_seconds_sum") == {(): 1.5}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/completions",): 27}
    assert samples(metrics, "http_request_size_bytes_sum") == {("/v1/completions",): 5}


def test_a_client_that_goes_away_ends_the_stream(app: Flask, metrics: HttpMetrics) -> None:
    response = start(app, "/v1/completions", "POST")
    next(iter(response))
    response.close()
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 1}
    assert samples(metrics, "http_request_duration_seconds_sum") == {("/v1/completions", "POST"): 0.5}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/completions",): 9}


def test_a_body_that_knows_its_bytes_is_asked_for_them(app: Flask, metrics: HttpMetrics) -> None:
    class Paced:
        bytes_sent = 0
        closed = False

        def __iter__(self) -> Iterator[bytes]:
            self.bytes_sent = 1234  # written to the socket by somebody else
            return iter(())

        def close(self) -> None:
            self.closed = True

    body = Paced()
    app.add_url_rule("/paced", "paced", lambda: Response(body))
    call(app, "/paced")
    assert samples(metrics, "http_response_size_bytes_sum") == {("/paced",): 1234}
    assert body.closed


def test_closing_a_counted_stream_closes_its_generator(app: Flask) -> None:
    ended = []

    def body() -> Iterator[bytes]:
        try:
            yield b"x"
            yield b"y"
        finally:
            ended.append(True)

    app.add_url_rule("/generator", "generator", lambda: Response(body()))
    response = start(app, "/generator")
    next(iter(response))
    response.close()
    assert ended == [True]


def test_a_whole_reply_is_observed_once(app: Flask, metrics: HttpMetrics) -> None:
    call(app, "/v1/chat/completions", "POST", b"{}")
    assert samples(metrics, "http_request_duration_seconds_sum") == {("/v1/chat/completions", "POST"): 0.25}
    assert samples(metrics, "http_request_duration_seconds_count") == {("/v1/chat/completions", "POST"): 1}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/chat/completions",): 2}


def test_the_handler_is_the_route_in_vllms_notation_and_sizes_are_bytes(
    app: Flask, metrics: HttpMetrics
) -> None:
    call(app, "/v1/models/org/name")
    assert samples(metrics, "http_requests_total") == {("/v1/models/{model}", "GET", "2xx"): 1}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/models/{model}",): 9}


@pytest.mark.parametrize(
    ("path", "method", "series"),
    [
        ("/nope", "GET", ("none", "GET", "4xx")),
        ("/v1/completions", "GET", ("/v1/completions", "GET", "4xx")),
        ("/v1/models/x", "HEAD", ("/v1/models/{model}", "HEAD", "2xx")),
        ("/fails", "GET", ("/fails", "GET", "5xx")),
        ("/nope", "BREW", ("none", "other", "4xx")),
    ],
)
def test_requests_that_go_wrong_are_counted_too(
    app: Flask, metrics: HttpMetrics, path: str, method: str, series: tuple[str, ...]
) -> None:
    call(app, path, method)
    assert samples(metrics, "http_requests_total") == {series: 1}


def test_a_client_cannot_create_series_at_will(app: Flask, metrics: HttpMetrics) -> None:
    for index in range(50):
        call(app, f"/nope{index}", f"BREW{index}")
    assert samples(metrics, "http_requests_total") == {("none", "other", "4xx"): 50}


@pytest.mark.parametrize(
    "path",
    ["/health", "/metrics", "/load", "/ping", "/version", "/ready", "/v1/load_lora_adapter", "/x/health"],
)
def test_probes_and_scrapes_are_not_counted(app: Flask, metrics: HttpMetrics, path: str) -> None:
    call(app, path)
    assert samples(metrics, "http_requests_total") == {}


@pytest.mark.parametrize("length", ["abc", "-5", "9" * 5000, ""])
def test_a_senseless_content_length_counts_as_nothing(app: Flask, metrics: HttpMetrics, length: str) -> None:
    environ = EnvironBuilder(path="/nope").get_environ() | {"CONTENT_LENGTH": length}
    response = app(environ, lambda status, headers, *rest: lambda data: None)
    b"".join(response)
    response.close()
    assert samples(metrics, "http_request_size_bytes_sum") == {("none",): 0}


def test_a_file_is_counted_when_it_is_handed_over(app: Flask, metrics: HttpMetrics) -> None:
    def file() -> Response:
        return Response(iter([b"abc"]), headers={"Content-Length": "3"}, direct_passthrough=True)

    app.add_url_rule("/file", "file", file)
    assert b"".join(start(app, "/file")) == b"abc"
    assert samples(metrics, "http_response_size_bytes_sum") == {("/file",): 3}


def test_an_exchange_below_flask_can_be_counted(metrics: HttpMetrics) -> None:
    metrics.observe("POST", "/v1/completions", 200, 0.02, request_bytes=10, response_bytes=20)
    metrics.observe("GET", "/health", 200, 0.02, request_bytes=0, response_bytes=0)
    assert samples(metrics, "http_requests_total") == {("/v1/completions", "POST", "2xx"): 1}
    assert samples(metrics, "http_response_size_bytes_sum") == {("/v1/completions",): 20}


def test_two_apps_do_not_share_numbers(app: Flask, metrics: HttpMetrics) -> None:
    other = HttpMetrics()
    call(app, "/v1/chat/completions", "POST")
    assert samples(other, "http_requests_total") == {}
