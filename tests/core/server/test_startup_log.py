"""The first lines of the log."""

import logging

import pytest

from app.core.application import roles
from app.core.server.gunicorn.startup_log import log_address, log_model, log_request
from app.core.settings import load


def lines(caplog: pytest.LogCaptureFixture, *argv: str) -> list[str]:
    log = logging.getLogger("startup")
    with caplog.at_level(logging.INFO, logger=log.name):
        settings = load(argv, {})
        log_model(log, settings, roles(settings))
    return caplog.messages[1:]


def test_log_of_a_plain_server_names_only_its_model(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "answers at once: --profile qwen3-14b-h100 adds the timing of a GPU"),
        (["--task", "embed"], "answers at once"),
        (["--role", "indexer"], "answers at once"),
        (["--time-to-first-token", "1s"], "timing: first token after 1s, each next after 0s"),
        (["--profile", "qwen3-14b-h100"], "timing: steps of profile qwen3-14b-h100"),
        (
            ["--data-parallel-size", "4"],
            "answers at once: --profile qwen3-14b-h100 adds the timing of a GPU; ranks 0 to 3",
        ),
    ],
)
def test_first_line_says_what_is_simulated(
    argv: list[str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    lines(caplog, "--model", "m", *argv)
    assert caplog.messages[0] == f"vLLM 0.32.0 (names and proven behavior); model: m; {text}"


@pytest.mark.parametrize(
    ("argv", "address", "request_flags"),
    [
        ([], "http://127.0.0.1:8000", ""),
        ([], "http://127.0.0.1:8000; console: http://127.0.0.1:8000/console", ""),
        (["--root-path", "/llm"], "http://127.0.0.1:8000/llm", ""),
        (
            ["--self-signed-certs", "--api-key", "s"],
            "https://127.0.0.1:8000",
            " -k -H 'Authorization: Bearer KEY'",
        ),
    ],
)
def test_address_comes_with_a_request_to_try(
    argv: list[str], address: str, request_flags: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("startup")
    with caplog.at_level(logging.INFO, logger=log.name):
        settings = load(argv, {})
        parts = (settings.server, settings.tls)
        has_console = "; console:" in address
        log_address(log, *parts, release="0.32.0", has_console=has_console)
        log_request(log, *parts, has_key=bool(settings.access.api_key))
    plays, attempt = caplog.messages
    assert plays == f"Understudy plays vLLM 0.32.0 at {address}"
    url = address.partition(";")[0]
    assert attempt.startswith(f"try: curl -s{request_flags} {url}/v1/chat/completions -H ")


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "KV events: published to tcp://127.0.0.1:5557; topic kv@127.0.0.1:8000@m"),
        (
            ["--pod-name", "pod-1"],
            "KV events: published to tcp://127.0.0.1:5557; topic kv@pod-1@m",
        ),
        (
            ["--pod-name", "pod-1", "--kv-events-topic", "kv@{address}:{port}@{model}"],
            "KV events: published to tcp://127.0.0.1:5557; topic kv@127.0.0.1:8000@m",
        ),
        (
            ["--pod-name", "pod-1", "--data-parallel-size", "2"],
            "KV events: published to tcp://127.0.0.1:5557; topic kv@pod-1:8000@m",
        ),
        (
            ["--zmq-endpoint", "tcp://*:7", "--kv-events-topic", "t"],
            "KV events: published to tcp://*:7; topic t",
        ),
    ],
)
def test_log_of_a_pod_tells_where_it_publishes_events(
    argv: list[str], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert lines(caplog, "--model", "m", "--enable-kvcache", *argv) == [text]


def test_log_of_a_cache_without_an_endpoint_tells_nothing_of_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert lines(caplog, "--enable-kvcache", "--zmq-endpoint", "") == []
