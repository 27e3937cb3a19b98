"""What steers a server is refused to web pages of others, and to names that are not the server's."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from app.serving.middleware.access import CONTROL, OURS, READING, host_of, is_loopback
from tests.application import app_of

JSON = {"Content-Type": "application/json"}
EVIL = "http://evil.example"
SELF = "http://localhost:8000"
FLAGS = (
    *("--console", "--server-dev-mode", "--profiling", "--allow-runtime-lora-updating"),
    *("--enable-responses-store", "--force-dummy-tokenizer"),
)
PROXY = ("--allowed-hosts", "Console.example", "--allowed-origins", "https://tool.example", "*")
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
    answer = app.test_client().open(path, method=method, headers=headers, environ_overrides=environ, **body)
    return int(answer.status_code)


def test_every_route_that_changes_something_is_known(app: Any) -> None:
    """Whoever adds one says whether a page of somebody else may ask for it."""
    changing = {route.path for route in app.routes if not set(route.methods) <= set(READING)}
    ours = {path for path in changing if path.startswith(OURS)}
    assert changing - ours - CONTROL == HARMLESS
    assert changing >= CONTROL
    assert not [route.path for route in app.routes if route.plain and route.path in ours | CONTROL]


ALLOWED, FOREIGN = True, False
ORIGINS = {
    "a script": ({}, ALLOWED),
    "the console": ({"Origin": SELF, "Sec-Fetch-Site": "same-origin"}, ALLOWED),
    "the console, in an old browser": ({"Origin": SELF}, ALLOWED),
    "somebody at the browser": ({"Sec-Fetch-Site": "none"}, ALLOWED),
    "a page that may": ({"Origin": "https://tool.example", "Sec-Fetch-Site": "cross-site"}, ALLOWED),
    "the console, by a proxy's name": ({"Origin": "http://console.example:8443"}, ALLOWED),
    "another page": ({"Origin": EVIL, "Sec-Fetch-Site": "cross-site"}, FOREIGN),
    "another page, in an old browser": ({"Origin": EVIL}, FOREIGN),
    "a page whose origin is hidden": ({"Origin": "null"}, FOREIGN),
    "a navigation": ({"Sec-Fetch-Site": "cross-site"}, FOREIGN),
    "a page of another port": ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, FOREIGN),
    "another port, in an old browser": ({"Origin": "http://localhost:3000"}, FOREIGN),
}


def test_pages_of_other_origins_are_refused(app: Any) -> None:
    for page, (headers, is_allowed) in ORIGINS.items():
        for path, answer in (("/admin/console/resume", 200), ("/fake_metrics", 400), ("/resume", 200)):
            assert status(app, path, headers) == (answer if is_allowed else 403), (page, path)
    for bound_to in ("127.0.0.1", "0.0.0.0", "vllm.example"):  # wherever the server listens
        assert status(app, "/pause", {"Origin": EVIL}, bound_to=bound_to) == 403
        assert status(app, "/admin/verdict", {"Origin": EVIL}, "DELETE", bound_to) == 403
        assert status(app, "/admin/verdict", {"Origin": EVIL}, "GET", bound_to) == 200, "it cannot read it"


HOSTS = [
    ("127.0.0.1", "localhost:8000", 200),
    ("::1", "[::1]:8000", 200),
    ("127.0.0.1", "understudy.localhost:8000", 200),
    ("127.0.0.1", "console.example:443", 200),
    ("127.0.0.1", "evil.example:8000", 403),
    ("127.0.0.1", "127.0.0.1.evil.example", 403),
    ("127.0.0.1", "10.0.0.1", 403),
    ("0.0.0.0", "evil.example", 200),
]


def test_a_loopback_server_answers_to_its_own_names(app: Any) -> None:
    for bound_to, host, expected in HOSTS:
        for path in ("/admin/config", "/console", "/admin/memory"):
            assert status(app, path, method="GET", bound_to=bound_to, host=host) == expected
        assert status(app, "/admin/config", bound_to=bound_to, host=host, json={}) == expected
        page = {"Origin": f"http://{host}"}
        assert status(app, "/resume", page, bound_to=bound_to, host=host) == expected
        assert status(app, "/resume", bound_to=bound_to, host=host) == 200, "vLLM's routes, for scripts"
        assert status(app, "/v1/models", method="GET", bound_to=bound_to, host=host) == 200
    assert host_of("") == "" and not is_loopback("")


def test_what_is_ours_takes_json_alone_and_no_body_needs_no_type(app: Any) -> None:
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
