"""`log-http`: one line of JSON for each exchange, without secrets, and nothing while it is off."""

import json
import logging
from typing import Any

import pytest
from flask.testing import FlaskClient

from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import post
from app.core.server.middleware.http_log import MAX_BODY_BYTES, HttpLog
from config.settings import Settings
from config.validation import LiveSettings
from tests.application import application

NAME = "app.core.server.middleware.http_log"


def client_of(live: LiveSettings) -> FlaskClient:
    def thing(context: RequestContext) -> Response:
        if not BodyLimits(1 << 20, 5.0).read(context):
            raise RuntimeError("secret detail")
        return json_response({})

    def switch(context: RequestContext) -> Response:
        live.change({"log-http": not live.current.log.log_http})
        return json_response({})

    def stream(context: RequestContext) -> Response:
        return Response(iter((b"data: 1", b"data: 2")), content_type="text/event-stream")

    routes = [post("/thing", thing), post("/switch", switch), post("/stream", stream)]
    return application(routes, HttpLog(), live=live).test_client()


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == NAME]


def test_body_logging_can_be_switched_while_the_server_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    live = LiveSettings(Settings())
    client = client_of(live)
    for on in (False, True, False):
        live.change({"log-http": on})
        client.post("/thing", data=b"one")
    assert [line["body"] for line in logged(caplog)] == ["one"]


def test_streamed_body_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    live = LiveSettings(Settings())
    client = client_of(live)
    live.change({"log-http": True})
    assert client.post("/stream", data=b"one").data == b"data: 1data: 2"
    assert [(line["body"], line["response"]) for line in logged(caplog)] == [("", "(stream)")]


def test_secrets_in_form_bodies_are_masked(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    live = LiveSettings(Settings())
    client = client_of(live)
    live.change({"log-http": True})
    form = "application/x-www-form-urlencoded"
    client.post("/thing?pwd=hidden", data=b"password=hidden; yes&n=1", content_type=form)
    [line] = logged(caplog)
    assert (line["path"], line["body"]) == ("/thing?pwd=***", "password=***&n=1")


def test_truncated_body_shows_no_part_of_a_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    live = LiveSettings(Settings())
    client = client_of(live)
    live.change({"log-http": True})
    url = b"https://me:hidden@host"
    client.post("/thing", data=b" " * (MAX_BODY_BYTES - url.index(b"den")) + url)
    [line] = logged(caplog)
    assert line["body"].strip() == f"https://... ({MAX_BODY_BYTES - 14 + len(url)} bytes)"
