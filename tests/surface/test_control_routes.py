"""Which of all routes are closed to foreign web pages and to unknown host names.

The routes are those of the core and of the extensions that are present. The rules for every server
are tested in tests/core/middleware.
"""

import re
from typing import Any

import pytest

from app.core.server.middleware.control_routes import CONTROL_ROUTES, is_control
from app.core.server.middleware.hosts import host_of
from scripts.surface import CONFIGURATIONS, absent_paths, is_flag
from tests.application import app_of
from tests.core.middleware.test_foreign_pages import EVIL, JSON, PROXY, SELF, status
from tests.present import is_present

FLAGS = tuple(
    filter(
        is_flag,
        (
            *("--console", "--server-dev-mode", "--profiling", "--allow-runtime-lora-updating"),
            *("--enable-responses-store", "--force-dummy-tokenizer", "--journal=1000"),
        ),
    )
)
ABSENT = absent_paths()
"""Paths of extensions that were deleted."""
OPEN = frozenset(
    (
        # Generation, and what prepares or reads it.
        *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/messages"),
        *("/v1/messages/count_tokens", "/v1/responses", "/v1/responses/{response_id}"),
        *("/v1/responses/{response_id}/cancel", "/inference/v1/generate", "/invocations"),
        *("/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render"),
        *("/v1/responses/render", "/v1/chat/completions/derender", "/v1/completions/derender"),
        *("/cohere/v2/chat", "/cohere/v2/chat/render", "/generate"),
        *("/v1/audio/transcriptions", "/v1/audio/translations"),
        # Vectors, scores and tokens.
        *("/pooling", "/classify", "/score", "/rerank", "/v1/embeddings", "/v1/score"),
        *("/v1/rerank", "/v2/embed", "/v2/rerank", "/v1/systemone", "/generative_scoring"),
        *("/tokenize", "/detokenize", "/tokenizer_info"),
        *("/score_completions", "/score_chat_completions", "/score_tokens"),
        # What clients, load balancers and monitors read under any name, as from vLLM.
        *("/", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/v1/models"),
        *("/version", "/health", "/health/ready", "/health_generate", "/ready", "/ping"),
        *("/metrics", "/load", "/model_info", "/get_model_info", "/kv_event_sources", "/query"),
        *("/is_sleeping", "/is_paused", "/is_scaling_elastic_ep"),
        *("/weight_info", "/get_world_size"),
    )
)
"""Routes that change nothing, and show nothing that vLLM does not show to everybody."""
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


def expected_status(path: str, usual_status: int) -> int:
    """Returns 404 for the path of a deleted extension, which is no control route then."""
    return 404 if path in ABSENT else usual_status


@pytest.fixture(scope="module")
def app() -> Any:
    return app_of(*FLAGS, *PROXY)


def app_of_configuration(name: str) -> Any:
    return app_of("--force-dummy-tokenizer", *filter(is_flag, CONFIGURATIONS[name]))


@pytest.mark.grpc
@pytest.mark.tracing
def test_every_route_is_listed_as_a_control_route_or_as_open() -> None:
    """Whoever adds a route says whether a page of somebody else may request it."""
    paths = set()
    for name in CONFIGURATIONS:
        routes = app_of_configuration(name).routes
        paths |= {route.path for route in routes}
        plain_paths = {route.path for route in routes if route.plain}
        assert not [*filter(is_control, plain_paths)], "the fast path would skip the checks"
    unlisted = {path for path in paths - OPEN if not is_control(path)}
    assert unlisted == set(), "add the route to CONTROL_ROUTES, or to OPEN"
    assert paths >= OPEN - ABSENT, "a route was removed"
    assert not [*filter(is_control, OPEN)]
    listed = {
        path for group in CONTROL_ROUTES.values() for path in group if not path.endswith("{all}")
    }
    assert listed - ABSENT <= paths, "a control route was removed"


@pytest.mark.parametrize(
    "configuration",
    [
        "default",
        pytest.param("every feature", marks=[pytest.mark.grpc, pytest.mark.tracing]),
        "pooling",
        "sglang",
    ],
)
def test_control_route_rejects_foreign_pages_and_rebound_hosts_for_every_method(
    configuration: str,
) -> None:
    server = app_of_configuration(configuration)
    checked = set()
    for route in server.routes:
        if not is_control(route.path):
            continue
        path = re.sub(r"\{\w+\}", "1", route.path)
        for method in set(route.methods) - {"OPTIONS"}:
            checked.add(f"{method} {path}")
            foreign = {"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
            image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
            rebound = {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"}
            assert status(server, path, foreign, method) == 403, (method, path)
            assert status(server, path, image, method) == 403, (method, path)
            assert status(server, path, rebound, method, host="evil.example") == 403, path
    expected = {"GET /admin/config", "POST /admin/config", "GET /admin/journal"}
    if configuration == "sglang":
        expected |= {"POST /abort_request", "GET /flush_cache", "POST /flush_cache"}
        expected |= {"GET /get_server_info", "GET /get_load"}
    missing = {operation for operation in expected - checked if operation.split()[1] not in ABSENT}
    assert missing == set()


def test_link_of_another_page_opens_the_console_but_a_frame_does_not(app: Any) -> None:
    link = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    frame = {**link, "Sec-Fetch-Dest": "iframe"}
    assert status(app, "/console", link, "GET") == expected_status("/console", 200)
    assert status(app, "/console", frame, "GET") == expected_status("/console", 403)
    assert status(app, "/admin/config", link, "GET") == 403
    assert status(app, "/console", link, "GET", host="evil.example") == expected_status(
        "/console", 403
    )


def test_requests_from_pages_of_other_origins_are_rejected(app: Any) -> None:
    for page, (headers, is_allowed) in ORIGINS.items():
        for path, answer in (
            ("/admin/console/resume", 200),
            ("/fake_metrics", 400),
            ("/resume", 200),
            ("/v1/load_lora_adapter", 400),
        ):
            expected = expected_status(path, answer if is_allowed else 403)
            assert status(app, path, headers) == expected, (page, path)
    for bound_to in ("127.0.0.1", "0.0.0.0", "vllm.example"):  # wherever the server listens
        for method, path, answer in (
            ("POST", "/admin/config", 403),
            ("POST", "/pause", 403),
            ("DELETE", "/admin/verdict", 403),
            ("GET", "/admin/config", 403),
            ("GET", "/admin/verdict", 403),
        ):
            expected = expected_status(path, answer)
            assert status(app, path, {"Origin": EVIL}, method, bound_to) == expected, path


def test_control_routes_accept_only_hosts_that_cannot_be_rebound(app: Any) -> None:
    for bound_to, host, expected in HOSTS:
        for path in (
            "/admin/config",
            "/console",
            "/admin/memory",
            "/admin/journal",
            "/server_info",
        ):
            answer = expected_status(path, expected)
            assert status(app, path, method="GET", bound_to=bound_to, host=host) == answer, host
        assert status(app, "/admin/config", bound_to=bound_to, host=host, json={}) == expected
        page = {"Origin": f"http://{host}"}
        answer = expected_status("/resume", expected)
        assert status(app, "/resume", page, bound_to=bound_to, host=host) == answer
        assert status(app, "/resume", bound_to=bound_to, host=host) == answer, "scripts, too"
        for path in ("/v1/models", "/health", "/metrics"):
            assert status(app, path, method="GET", bound_to=bound_to, host=host) == 200
    assert host_of("") == ""


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
def test_foreign_host_is_accepted_only_by_routes_that_require_a_key(
    flag: str, path: str, needs_key: bool
) -> None:
    """An API key protects no development route: neither does vLLM's."""
    key = {"Authorization": "Bearer secret-of-the-test"}
    guarded = app_of(*FLAGS, flag, "secret-of-the-test")
    expected = expected_status(path, 200 if needs_key else 403)
    assert status(guarded, path, key, "GET", host="evil.example") == expected


def test_api_key_protects_adapter_routes_but_not_sleep_routes() -> None:
    guarded = app_of(*FLAGS, "--api-key", "secret-of-the-test")
    key = {"Authorization": "Bearer secret-of-the-test"}
    for path, answer in (("/v1/load_lora_adapter", 400), ("/sleep", 403)):
        expected = expected_status(path, answer)
        assert status(guarded, path, key, host="evil.example", json={}) == expected


def test_wildcard_in_allowed_hosts_accepts_hosts_but_not_foreign_origins() -> None:
    anywhere = app_of(*FLAGS, "--allowed-hosts", "*")
    assert status(anywhere, "/admin/config", method="GET", host="gpu.corp.example") == 200
    for path in ("/v1/load_lora_adapter", "/resume"):
        expected = expected_status(path, 403)
        assert status(anywhere, path, {"Origin": EVIL}, host="gpu.corp.example") == expected


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
        path = "/admin/console/resume"
        assert status(app, path, headers) == expected_status(path, 200)
    if is_present("adapters"):
        answer = app.test_client().post("/v1/load_lora_adapter", headers={"Origin": EVIL})
        assert answer.get_json()["error"]["type"] == "PermissionDeniedError"


def test_edge_case_requests_have_the_same_status_and_count_as_in_vllm() -> None:
    flags = [
        "--server-dev-mode",
        *filter(is_flag, ("--enable-scale-out",)),
        "--api-key",
        "k",
        "--enable-request-id-headers",
    ]
    client = app_of(*flags).test_client()

    def counted() -> float:
        lines = [
            line
            for line in client.get("/metrics").text.splitlines()
            if "http_requests_total{" in line
        ]
        return sum(
            float(line.rpartition(" ")[2]) for line in lines if not line.startswith("understudy")
        )

    preflight = {"Origin": "https://a", "Access-Control-Request-Method": "GET"}
    for method, path, headers, body, expected, counts in (
        ("GET", "/v1/models", {"X-Request-Id": ""}, None, 401, 0),
        ("OPTIONS", "/v1/models", preflight, None, 400, 0),
        ("OPTIONS", "/v1/models", {}, None, 405, 1),
        ("GET", "/metrics/", {}, None, 200, 0),
        ("GET", "/metrics/x", {}, None, 200, 0),
        ("GET", "/docs/oauth2-redirect", {}, None, 200, 1),
        ("POST", "/abort_requests", {}, "\ufeff{}", 200, 1),
        ("POST", "/abort_requests", {}, '{"request_ids": 5}', 400, 1),
        ("POST", "/inference/v1/abort_requests", {}, "[]", 400, 1),
        ("POST", "/inference/v1/abort_requests", {}, '{"request_ids": 5}', 200, 1),
        ("POST", "/collective_rpc", {}, '{"method": "check_health", "args": 5}', 400, 1),
    ):
        if path in ABSENT:
            continue
        count_before = counted()
        sent_headers = headers if body is None else {"Authorization": "Bearer k"}
        answer = client.open(path, method=method, headers=sent_headers, data=body and body.encode())
        assert (answer.status_code, counted() - count_before) == (expected, counts), (
            method,
            path,
            body,
        )
        assert sent_headers.get("X-Request-Id") is None or answer.headers["X-Request-Id"] == ""
