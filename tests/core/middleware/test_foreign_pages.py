"""Control routes are closed to foreign web pages and to unknown host names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.middleware.control_routes import CONTROL_ROUTES, is_control
from app.core.server.middleware.hosts import HostNames
from tests.application import app_of

JSON = {"Content-Type": "application/json"}
EVIL = "http://evil.example"
SELF = "http://localhost:8000"
FLAGS = ("--force-dummy-tokenizer", "--allow-runtime-lora-updating")
PROXY = (
    "--pod-name",
    "pod-7.example",
    "--allowed-hosts",
    "Console.example",
    "--allowed-origins",
    "https://tool.example",
    "*",
)


@pytest.fixture(scope="module")
def app() -> Any:
    return app_of(*FLAGS, *PROXY)


def status(
    app: Any,
    path: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    method: str = "POST",
    bound_to: str = "127.0.0.1",
    host: str = "localhost:8000",
    **body: Any,
) -> int:
    environ = {"SERVER_NAME": bound_to, "HTTP_HOST": host}
    answer = app.test_client().open(
        path, method=method, headers=headers, environ_overrides=environ, **body
    )
    return int(answer.status_code)


def test_forwarded_host_header_does_not_replace_the_host(app: Any) -> None:
    for name in ("X-Forwarded-Host", "Forwarded", "X-Host"):
        value = "host=localhost" if name == "Forwarded" else "localhost"
        assert status(app, "/admin/config", {name: value}, "GET", host="evil.example") == 403


def test_error_for_a_rejected_host_names_the_setting(app: Any) -> None:
    answer = app.test_client().get("/admin/config", headers={"Host": "gpu.corp.example"})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (403, "PermissionDeniedError", 403)
    assert "'gpu.corp.example'" in error["message"]
    assert "--allowed-hosts" in error["message"]


def test_admin_key_that_is_set_while_serving_protects_the_admin_routes(app: Any) -> None:
    running = app_of(*FLAGS)
    assert status(running, "/admin/memory", method="GET", host="evil.example") == 403
    assert status(running, "/admin/config", json={"admin-key": "secret-of-the-test"}) == 200
    assert status(running, "/admin/memory", method="GET", host="evil.example") == 401
    key = {"X-Admin-Key": "secret-of-the-test"}
    assert status(running, "/admin/memory", key, "GET", host="evil.example") == 200


def test_local_host_names_are_accepted() -> None:
    """The DNS is asked once, and only for a name that begins with the machine's."""
    lookups: list[str] = []

    def qualified_name() -> str:
        lookups.append("asked")
        return "GPU7.corp.example"

    hosts = HostNames((), machine_name=lambda: "gpu7", qualified_name=qualified_name)
    assert hosts.accepts("gpu7")
    assert not hosts.accepts("gpu8.corp.example")
    assert lookups == []
    assert hosts.accepts("gpu7.corp.example:8000")
    assert not hosts.accepts("gpu7.evil.example:8000")
    assert lookups == ["asked"]


@given(
    st.from_regex(
        r"[a-z0-9-]{1,20}(\.[a-z0-9-]{1,20}){0,3}\.(com|example|app|zip|dev)", fullmatch=True
    ),
    st.sampled_from(
        ["{}", "{}:8000", "{}.", "{}.:80", "user@{}", "localhost@{}", "{}\t", "[{}]", "[::1].{}"]
    ),
)
def test_no_spelling_of_a_public_host_name_is_accepted(name: str, spelling: str) -> None:
    hosts = HostNames(("console.test",))
    assert not hosts.accepts(spelling.format(name))
    assert not hosts.accepts(spelling.format(name).upper())


def test_control_routes_are_recognized_by_the_url_path_of_a_request(app: Any) -> None:
    """A preflight has no route, so its path alone decides."""
    for path in (
        "/admin/journal",
        "/console/",
        "/fake_metrics",
        "/sleep",
        "/sleep/",
        "/adapters/one",
    ):
        assert is_control(path)
    for path in ("/v1/models", "/health", "/metrics", "/", "/sleepless", "/is_sleeping"):
        assert not is_control(path)
    assert all(is_control(path) for group in CONTROL_ROUTES.values() for path in group)
