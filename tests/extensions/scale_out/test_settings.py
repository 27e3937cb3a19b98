"""Which routes the settings add."""

import logging

import pytest

from app.core.settings import resolve, settings_type
from app.extensions.scale_out.settings import ScaleOutSettings
from config.sources import ignore_warning
from tests.client import Client, in_process
from vllm_facts.serve import settings_of


def test_abort_requests_route_rejects_a_body_that_is_not_an_object(client: Client) -> None:
    assert client.get("/kv_event_sources").json() == {}  # no events are published
    for path in ("/abort_requests", "/inference/v1/abort_requests"):
        for body in ([], "x"):  # names no requests
            answer = client.post(path, body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "Bad Request")
            assert answer.json()["error"]["message"] == "Request body must be a JSON object"


def test_disabled_route_returns_404_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with in_process("--no-enable-scale-out") as client, caplog.at_level(logging.WARNING):
        for path in ("abort_requests", "generate"):
            assert error_type(client, f"/inference/v1/{path}") == (403, "PermissionDeniedError")
        for family in ("chat/completions", "completions"):
            assert error_type(client, f"/v1/{family}/render") == (403, "PermissionDeniedError")
    line = "/inference/v1/abort_requests is rejected: it requires --enable-scale-out"
    assert [record.getMessage() for record in caplog.records] == [line]


def test_scale_out_routes_are_on_by_default_except_with_the_serve_command() -> None:
    with in_process() as client:
        assert client.post("/v1/completions/render", {"prompt": "Hello"}).status_code == 200
    flags = settings_of(("tiny",), {}, settings_type())
    settings = resolve(flags, {}, ignore_warning)
    assert not settings.section(ScaleOutSettings).enable_scale_out


def error_type(client: Client, path: str) -> tuple[int, str]:
    answer = client.post(path, {})
    return answer.status_code, answer.json()["error"]["type"]
