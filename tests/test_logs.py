"""Log lines as they leave the process: format, time, fields, and a request id on each."""

import json
import logging
import re
from collections.abc import Callable, Iterator
from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest
from gunicorn.config import Config

from app.core.server.gunicorn.logs import SHOWN_NAMES, ServerLogger, logger_class
from app.core.server.http.context import CONTEXT, RequestContext, current_request
from config.settings import LogSettings
from tests.application import request

Capture = pytest.CaptureFixture[str]
NAMES = ("", "app", "gunicorn.error", "gunicorn.access")


@pytest.fixture(autouse=True)
def loggers_put_back() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    states_before = [(log.level, log.handlers[:], log.propagate) for log in loggers]
    yield
    for log, (level, handlers, propagate) in zip(loggers, states_before, strict=True):
        log.setLevel(level)
        log.handlers[:], log.propagate = handlers, propagate


def configure(**settings: Any) -> ServerLogger:
    """A server's logger of these settings, as gunicorn.conf.py has gunicorn make it."""
    configuration = Config()
    log_settings = LogSettings(**settings)
    configuration.set("logger_class", logger_class(log_settings))
    configuration.set("loglevel", log_settings.log_level)
    logger: ServerLogger = configuration.logger_class(configuration)
    return logger


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def named(identifier: str) -> RequestContext:
    return request("/v1/models", headers={"x-request-id": identifier})


def in_request(
    identifier: str, action: Callable[..., None], *arguments: Any, **fields: Any
) -> None:
    """Call `action` as part of a request."""

    def served() -> None:
        current_request.set(named(identifier))
        action(*arguments, **fields)

    Context().run(served)


def test_text_log_line_contains_the_time_level_request_id_and_logger(
    capsys: Capture,
) -> None:
    configure()
    in_request("req-1", logging.getLogger("app.core.server").warning, "%d waiting", 3)
    time_pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    pattern = rf"{time_pattern} WARNING \[\d+\] \[req-1\] app\.core\.server: 3 waiting\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)


@pytest.mark.parametrize("name", ["app.core.api", "urllib3"])
def test_json_log_line_of_any_logger_has_a_request_id(capsys: Capture, name: str) -> None:
    configure(log_format="json")
    log = logging.getLogger(name)
    Context().run(
        log.info, "outside"
    )  # other tests have left their requests in the context of this one
    in_request("req-2", log.info, "inside", extra={"tokens": 7})
    outside, inside = lines(capsys.readouterr().err)
    assert (outside["request_id"], inside["request_id"]) == ("-", "req-2")
    assert inside["logger"] == SHOWN_NAMES.get(name, name)
    assert (inside["message"], inside["level"], inside["tokens"]) == ("inside", "INFO", 7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", inside["time"])
    try:
        raise RuntimeError("broken\nin two")
    except RuntimeError:
        log.exception("failed")
    [line] = lines(capsys.readouterr().err)
    assert "RuntimeError: broken" in line["exc_info"]


@pytest.mark.parametrize(("level", "shown"), [("debug", 3), ("info", 2), ("error", 1)])
def test_log_level_is_the_lowest_level_that_is_shown(
    capsys: Capture, level: str, shown: int
) -> None:
    configure(log_level=level, log_format="json")
    for name in ("app", "gunicorn.error", "elsewhere"):
        log = logging.getLogger(name)
        for severity in (logging.DEBUG, logging.INFO, logging.ERROR):
            log.log(severity, "said")
    assert len(lines(capsys.readouterr().err)) == 3 * shown


# Access lines, written by gunicorn's own logger


def access(server: ServerLogger, path: str = "/v1/models", **environ: object) -> None:
    took = SimpleNamespace(seconds=1, microseconds=500_000)
    incoming = SimpleNamespace(headers=[("AUTHORIZATION", "Bearer secret")])
    response = SimpleNamespace(status="200 OK", sent=42, headers=[])
    variables = {
        **{"REQUEST_METHOD": "GET", "RAW_URI": path, "PATH_INFO": path},
        **{"SERVER_PROTOCOL": "HTTP/1.1", "REMOTE_ADDR": "10.0.0.1"},
    }
    server.access(response, incoming, variables | environ, took)


def test_json_access_line_has_the_fields_of_the_request(capsys: Capture) -> None:
    server = configure(access_log=True, log_format="json")
    context = named("req-3")
    in_request("another", access, server, "/v1/models?key=secret", **{CONTEXT: context})
    written = capsys.readouterr().out
    (line,) = lines(written)
    assert line.items() >= {
        "client": "10.0.0.1", "method": "GET", "path": "/v1/models", "status": 200, "bytes": 42,
        "duration": 1.5, "request_id": "req-3", "logger": "gunicorn.access",
    }.items()  # fmt: skip
    assert "secret" not in written


def test_text_access_line_cannot_be_forged(
    capsys: Capture,
) -> None:
    """The id where another server has made no context."""
    server = configure(access_log=True)
    in_request("req-4", access, server)
    assert capsys.readouterr().out.endswith(
        "[req-4] gunicorn.access: GET /v1/models 200 42 bytes 1.500 s\n"
    )
    access(server, "/\nfake line\x1b[31m")
    written = capsys.readouterr().out
    assert written.count("\n") == 1 and "\x1b" not in written


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_text_of_a_peer_is_shortened_in_warnings_and_tracebacks(
    capsys: Capture, log_format: str
) -> None:
    configure(log_format=log_format)
    root = logging.getLogger()  # pytest's handler would leave its traceback to the others
    root.handlers = [handler for handler in root.handlers if hasattr(handler, "_gunicorn")]
    log = logging.getLogger("app.extensions.handoff.reads")
    log.warning("cannot read from %s", "a" * 100_000)
    try:
        raise ValueError("b" * 100_000)
    except ValueError:
        log.exception("unexpected")
    written = capsys.readouterr().err
    assert len(written) < 10_000
    assert "cannot read from aaa" in written and "(100017 characters)" in written
    assert "ValueError: bbb" in written


def test_long_lines_that_users_ask_for_are_whole(capsys: Capture) -> None:
    configure(log_level="debug")
    logging.getLogger("app.core.server").info("%s", "a" * 100_000)
    logging.getLogger("app.core.server").debug("%s", "a" * 100_000)
    assert len(capsys.readouterr().err) > 200_000


def test_invalid_requests_are_logged_once_in_a_second(capsys: Capture) -> None:
    log = configure()
    for number in range(100):
        log.warning(f"Invalid request from ip=127.0.0.1: {number}")
        log.warning("other")
    written = capsys.readouterr().err
    assert 1 <= written.count("Invalid request from") < 10
    assert written.count("other") == 100
