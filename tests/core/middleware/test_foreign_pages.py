"""Control routes are closed to foreign web pages and to unknown host names."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.middleware.foreign_pages import (
    CONTROL_PATHS,
    OPERATOR_PREFIXES,
    SAFE_METHODS,
    is_control,
)
from app.core.server.middleware.hosts import HostNames, host_of
from tests.application import app_of

JSON = {"Content-Type": "application/json"}
EVIL = "http://evil.example"
SELF = "http://localhost:8000"
FLAGS = (
    *("--console", "--server-dev-mode", "--profiling", "--allow-runtime-lora-updating"),
    *("--enable-responses-store", "--force-dummy-tokenizer"),
)
PROXY = (
    "--pod-name",
    "pod-7.example",
    "--allowed-hosts",
    "Console.example",
    "--allowed-origins",
    "https://tool.example",
    "*",
)
HARMLESS = frozenset(
    (
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/messages"),
        *("/v1/messages/count_tokens", "/v1/responses", "/v1/responses/{response_id}/cancel"),
        *("/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"),
        *("/v1/messages/render", "/v1/responses/render"),
        *("/v1/chat/completions/derender", "/v1/completions/derender"),
        *("/v1/systemone", "/generative_scoring", "/invocations", "/tokenize", "/detokenize"),
        *("/ping", "/metrics", "/is_scaling_elastic_ep"),
    )
)
"""Routes that take POST, and steer nothing: what vLLM's clients ask for."""


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


def test_every_changing_route_is_a_control_path_or_harmless(app: Any) -> None:
    """Whoever adds one says whether a page of somebody else may ask for it."""
    changing = {route.path for route in app.routes if not set(route.methods) <= set(SAFE_METHODS)}
    ours = {path for path in changing if path.startswith(OPERATOR_PREFIXES)}
    assert changing - ours - CONTROL_PATHS == HARMLESS
    assert changing >= CONTROL_PATHS
    assert not [
        route.path for route in app.routes if route.plain and route.path in ours | CONTROL_PATHS
    ]


ALLOWED, FOREIGN = True, False
ORIGINS = {
    "a script": ({}, ALLOWED),
    "the console": ({"Origin": SELF, "Sec-Fetch-Site": "same-origin"}, ALLOWED),
    "the console, in an old browser": ({"Origin": SELF}, ALLOWED),
    "somebody at the browser": ({"Sec-Fetch-Site": "none"}, ALLOWED),
    "a page that may": (
        {"Origin": "https://tool.example", "Sec-Fetch-Site": "cross-site"},
        ALLOWED,
    ),
    "the console, by a proxy's name": ({"Origin": "http://console.example:8443"}, ALLOWED),
    "another page": ({"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, FOREIGN),
    "another page, in an old browser": ({"Origin": EVIL}, FOREIGN),
    "a page whose origin is hidden": ({"Origin": "null"}, FOREIGN),
    "a navigation": ({"Sec-Fetch-Site": "cross-site"}, FOREIGN),
    "a page of another port": (
        {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
        FOREIGN,
    ),
    "another port, in an old browser": ({"Origin": "http://localhost:3000"}, FOREIGN),
}


def test_pages_of_other_origins_are_refused(app: Any) -> None:
    for page, (headers, is_allowed) in ORIGINS.items():
        for path, answer in (
            ("/admin/console/resume", 200),
            ("/fake_metrics", 400),
            ("/resume", 200),
        ):
            assert status(app, path, headers) == (answer if is_allowed else 403), (page, path)
    for bound_to in ("127.0.0.1", "0.0.0.0", "vllm.example"):  # wherever the server listens
        assert status(app, "/pause", {"Origin": EVIL}, bound_to=bound_to) == 403
        assert status(app, "/admin/verdict", {"Origin": EVIL}, "DELETE", bound_to) == 403
        assert status(app, "/admin/verdict", {"Origin": EVIL}, "GET", bound_to) == 200, (
            "it cannot read it"
        )


HOSTS = [
    ("127.0.0.1", "localhost:8000", 200),
    ("::1", "[::1]:8000", 200),
    ("127.0.0.1", "understudy.localhost:8000", 200),
    ("127.0.0.1", "console.example:443", 200),
    ("127.0.0.1", "CONSOLE.Example.", 200),
    ("127.0.0.1", "evil.example:8000", 403),
    ("127.0.0.1", "127.0.0.1.evil.example", 403),
    ("127.0.0.1", "10.0.0.1", 200),
    ("0.0.0.0", "evil.example", 403),
    ("0.0.0.0", "[2001:db8::1]:8000", 200),
    ("0.0.0.0", "vllm", 200),
    ("0.0.0.0", "vllm.default.svc:8000", 200),
    ("0.0.0.0", "vllm-0.vllm.default.svc.cluster.local", 200),
    ("0.0.0.0", "gpu7.LOCAL:8000", 200),
    ("0.0.0.0", "gpu7.zone.internal.", 200),
    ("0.0.0.0", "pod-7.example", 200),
    ("0.0.0.0", "local.evil.example", 403),
    ("0.0.0.0", "evilsvc.example", 403),
    ("0.0.0.0", "localhost:8000@evil.example", 403),
    ("0.0.0.0", "localhost, evil.example", 403),
    ("0.0.0.0", "evil.example:console.example", 403),
    ("0.0.0.0", "[evil.example]:8000", 403),
    ("0.0.0.0", "localhost/evil.example", 403),
]


def test_control_routes_accept_only_hosts_that_cannot_be_rebound(app: Any) -> None:
    for bound_to, host, expected in HOSTS:
        for path in (
            "/admin/config",
            "/console",
            "/admin/memory",
            "/admin/journal",
            "/server_info",
        ):
            assert status(app, path, method="GET", bound_to=bound_to, host=host) == expected, host
        assert status(app, "/admin/config", bound_to=bound_to, host=host, json={}) == expected
        page = {"Origin": f"http://{host}"}
        assert status(app, "/resume", page, bound_to=bound_to, host=host) == expected
        assert status(app, "/resume", bound_to=bound_to, host=host) == expected, "scripts, too"
        for path in ("/v1/models", "/health", "/metrics"):
            assert status(app, path, method="GET", bound_to=bound_to, host=host) == 200
    assert host_of("") == ""


def test_forwarded_host_header_does_not_replace_the_host(app: Any) -> None:
    for name in ("X-Forwarded-Host", "Forwarded", "X-Host"):
        value = "host=localhost" if name == "Forwarded" else "localhost"
        assert status(app, "/admin/config", {name: value}, "GET", host="evil.example") == 403


def test_error_for_a_refused_host_names_the_setting(app: Any) -> None:
    answer = app.test_client().get("/admin/config", headers={"Host": "gpu.corp.example"})
    error = answer.get_json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (403, "PermissionDeniedError", 403)
    assert "'gpu.corp.example'" in error["message"]
    assert "--allowed-hosts" in error["message"]


@pytest.mark.parametrize(
    ("flag", "path", "needs_key"),
    [
        ("--admin-key", "/admin/config", True),
        ("--admin-key", "/console", True),
        ("--admin-key", "/server_info", False),
        ("--api-key", "/admin/config", True),
        ("--api-key", "/server_info", False),
    ],
)
def test_key_protects_a_route_under_every_host(flag: str, path: str, needs_key: bool) -> None:
    """An API key protects no development route: neither does vLLM's."""
    key = {"Authorization": "Bearer secret-of-the-test"}
    guarded = app_of(*FLAGS, flag, "secret-of-the-test")
    assert status(guarded, path, key, "GET", host="evil.example") == (200 if needs_key else 403)


def test_api_key_protects_adapters_but_not_sleep() -> None:
    guarded = app_of(*FLAGS, "--api-key", "secret-of-the-test")
    key = {"Authorization": "Bearer secret-of-the-test"}
    for path, expected in (("/v1/load_lora_adapter", 400), ("/sleep", 403)):
        assert status(guarded, path, key, host="evil.example", json={}) == expected


def test_key_changes_apply_while_serving(app: Any) -> None:
    running = app_of(*FLAGS)
    assert status(running, "/admin/memory", method="GET", host="evil.example") == 403
    assert status(running, "/admin/config", json={"admin-key": "secret-of-the-test"}) == 200
    assert status(running, "/admin/memory", method="GET", host="evil.example") == 401
    key = {"X-Admin-Key": "secret-of-the-test"}
    assert status(running, "/admin/memory", key, "GET", host="evil.example") == 200


def test_indexer_checks_the_host() -> None:
    indexer = app_of(
        "--role", "indexer", "--kv-index-pods", "tcp://pod:5557", "--force-dummy-tokenizer"
    )
    assert status(indexer, "/admin/memory", method="GET", host="evil.example") == 403
    assert status(indexer, "/admin/memory", method="GET", host="indexer.default.svc:8000") == 200
    assert status(indexer, "/health", method="GET", host="evil.example") == 200


def test_wildcard_in_allowed_hosts_accepts_hosts_but_not_pages() -> None:
    anywhere = app_of(*FLAGS, "--allowed-hosts", "*")
    assert status(anywhere, "/admin/config", method="GET", host="gpu.corp.example") == 200
    assert status(anywhere, "/resume", {"Origin": EVIL}, host="gpu.corp.example") == 403


def test_names_of_this_machine_are_accepted() -> None:
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
def test_no_spelling_of_a_public_name_is_accepted(name: str, spelling: str) -> None:
    hosts = HostNames(("console.test",))
    assert not hosts.accepts(spelling.format(name))
    assert not hosts.accepts(spelling.format(name).upper())


def test_control_paths_are_recognized_in_requests(app: Any) -> None:
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
    assert all(is_control(path) for path in CONTROL_PATHS)


def test_operator_routes_require_json_unless_the_body_is_empty(app: Any) -> None:
    for headers, data, expected in (
        (JSON, b"{}", 200),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, b"{}", 200),
        ({}, b"{}", 415),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({"Content-Type": "text/plain"}, b"", 415),
    ):
        assert status(app, "/admin/config", headers, data=data) == expected
    for headers in ({}, {"Content-Length": "0"}):  # curl -X POST sends neither body nor type
        assert status(app, "/admin/console/resume", headers) == 200
    answer = app.test_client().post("/pause", headers={"Origin": EVIL})
    assert answer.get_json()["error"]["type"] == "PermissionDeniedError"
