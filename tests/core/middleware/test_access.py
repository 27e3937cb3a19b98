"""Access: API keys as in vLLM, a separate key for /admin, and CORS."""

import pytest
import requests
from flask.testing import FlaskClient
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.test import TestResponse

from app import create_app
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import get, post
from app.core.server.middleware.api_keys import ApiKeys
from app.core.server.middleware.cors import PREFLIGHT_VARY, Cors
from app.core.settings import load
from config.settings import AccessSettings, Settings
from config.validation import LiveSettings
from tests.application import application, empty_object, request

PAGE = "https://page.example"
OTHER = "https://other.example"


def secret(context: RequestContext) -> Response:
    return json_response({"secret": 1})


def client(**access: object) -> FlaskClient:
    cors = Cors(AccessSettings(**access))  # type: ignore[arg-type]
    return application([post("/thing", empty_object)], cors).test_client()


def preflight(
    client: FlaskClient,
    origin: str = PAGE,
    method: str = "POST",
    headers: str | None = None,
    network: str | None = None,
) -> TestResponse:
    request_headers = {"Origin": origin, "Access-Control-Request-Method": method}
    if network is not None:
        request_headers["Access-Control-Request-Private-Network"] = network
    if headers is not None:
        request_headers["Access-Control-Request-Headers"] = headers
    return client.options("/thing", headers=request_headers)


def allowed_origin(answer: TestResponse | requests.Response) -> str | None:
    return answer.headers.get("Access-Control-Allow-Origin")


def test_request_origin_replaces_wildcard_only_if_credentials_are_allowed() -> None:
    for credentials, expected in ((False, "*"), (True, OTHER)):
        page = client(allowed_origins=("*",), allow_credentials=credentials)
        for answer in (preflight(page, OTHER), page.post("/thing", headers={"Origin": OTHER})):
            assert (answer.status_code, allowed_origin(answer)) == (200, expected)
            credentials_header = answer.headers.get("Access-Control-Allow-Credentials")
            assert credentials_header == ("true" if credentials else None)
            assert credentials or "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("request_headers", "refused"),
    [
        ({"method": "POST"}, ""),
        ({"method": "DELETE"}, "method"),
        ({"method": "OS"}, "method"),
        ({"headers": "Authorization, content-type"}, ""),
        ({"headers": "authorization, x-other"}, "headers"),
        ({"headers": ""}, "headers"),
        ({"network": "true"}, "private-network"),
        ({"origin": OTHER, "method": "PUT", "headers": "x-other"}, "origin, method, headers"),
    ],
)
def test_preflight_response_lists_disallowed_methods_and_headers(
    request_headers: dict[str, str], refused: str
) -> None:
    page = client(
        allowed_origins=(PAGE,), allowed_methods=("POST", "GET"), allowed_headers=("authorization",)
    )
    answer = preflight(page, **request_headers)
    assert answer.status_code == (400 if refused else 200)
    assert answer.text == (f"Disallowed CORS {refused}" if refused else "OK")
    assert answer.headers["Access-Control-Allow-Headers"].startswith("Accept, ")
    assert answer.headers["Access-Control-Allow-Methods"] == "POST, GET"
    assert answer.headers["Vary"] == PREFLIGHT_VARY


def test_origin_must_match_an_allowed_origin_exactly() -> None:
    for origin in ("http://[::1]:3000", "https://*.example", "https://a.b"):
        page = client(allowed_origins=(origin,))
        assert allowed_origin(preflight(page, origin)) == origin
        for other in (origin + ".evil", "https://x.example", "https://aXb", "x" + origin):
            assert allowed_origin(preflight(page, other)) is None
            assert allowed_origin(page.post("/thing", headers={"Origin": other})) is None
    for headers in ({}, {"Origin": PAGE}, {"Access-Control-Request-Method": "POST"}):
        assert client(allowed_origins=(PAGE,)).options("/thing", headers=headers).status_code == 405


CONTROL_PATHS = (
    "/admin/journal",
    "/admin/config",
    "/console",
    "/fake_metrics",
    "/sleep",
    "/adapters/one",
)


@pytest.mark.parametrize("credentials", [False, True])
def test_wildcard_origin_does_not_open_control_routes(credentials: bool) -> None:
    access = AccessSettings(allowed_origins=("*", PAGE), allow_credentials=credentials)
    for path in (*CONTROL_PATHS, "/v1/models"):
        route = post(path, secret)
        page = application([route], Cors(access)).test_client()
        for origin in (PAGE, OTHER):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            preflight_answer = page.options(path, headers=headers)
            answered = page.post(path, headers={"Origin": origin})
            is_open = origin == PAGE or path == "/v1/models"
            assert preflight_answer.status_code == (200 if is_open else 400)
            assert preflight_answer.text == ("OK" if is_open else "Disallowed CORS origin")
            for checked in (preflight_answer, answered):
                assert allowed_origin(checked) in ((origin, "*") if is_open else (None,))
                has_credentials = "Access-Control-Allow-Credentials" in checked.headers
                assert has_credentials == (credentials and is_open)
                assert "Origin" in checked.headers["Vary"]


def test_explicitly_allowed_origin_opens_control_routes_despite_a_wildcard() -> None:
    page = application(
        [post("/admin/config", empty_object)],
        Cors(AccessSettings(allowed_origins=("*", PAGE))),
    ).test_client()
    assert allowed_origin(page.post("/admin/config", headers={"Origin": PAGE})) == PAGE


def keyed(live: LiveSettings) -> FlaskClient:
    paths = ("/v1/models", "/admin/config", "/health")
    routes = [get(path, empty_object) for path in paths]
    return application(routes, ApiKeys(), live=live).test_client()


@pytest.mark.parametrize(
    ("api_key", "admin_key", "opening"),
    [
        ((), None, {"none", "api", "admin"}),
        (("api",), None, {"api"}),
        ((), "admin", {"admin"}),
        (("api",), "admin", {"admin"}),
    ],
)
def test_admin_routes_require_the_admin_key_or_if_none_is_set_the_api_key(
    api_key: tuple[str, ...], admin_key: str | None, opening: set[str]
) -> None:
    access = AccessSettings(api_key=api_key, admin_key=admin_key)
    client = keyed(LiveSettings(Settings(access=access)))
    answers = {
        key: client.get("/admin/config", headers={"Authorization": f"Bearer {key}"})
        for key in ("none", "api", "admin")
    }
    assert {key for key, answer in answers.items() if answer.status_code == 200} == opening
    assert client.get("/health").status_code == 200


@given(st.text(min_size=1), st.lists(st.text(min_size=1), max_size=3))
def test_only_configured_api_keys_are_accepted(key: str, keys: list[str]) -> None:
    guard = ApiKeys()
    guard.on_access(AccessSettings(api_key=tuple(keys)))
    header = f"Bearer {key}".encode(errors="surrogateescape").decode("latin-1")
    request_with_key = request("/v1/models", headers={"authorization": header})
    assert guard.active == bool(keys)
    assert (guard.begin(request_with_key) is None) == (not keys or key in keys)


def test_vllm_api_key_variable_sets_a_key() -> None:
    client = create_app(load(["--force-dummy-tokenizer"], {"VLLM_API_KEY": "one"})).test_client()
    assert client.get("/v1/models").status_code == 401
    assert client.get("/v1/models", headers={"Authorization": "Bearer one"}).status_code == 200
