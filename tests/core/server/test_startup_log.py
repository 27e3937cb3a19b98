"""The first lines of the log."""

import logging

import pytest

from app.core.application import roles
from app.core.server.gunicorn.startup_log import log_model
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
        ([], "KV events: published to tcp://127.0.0.1:5557; topic kv@127.0.0.1:8000@m"),
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
