"""Errors leave in vLLM's form, the engine's in vLLM's words; what is nobody's business stays
inside.
"""

import json
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient

from app.core.api.errors import API_ERRORS, as_api_error, as_stream_error
from app.core.base.overload import ClientLeftError
from app.core.engine import errors
from app.core.engine.errors import EngineError
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, too_many
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import get, post
from app.core.text.base import TokenizerInputError, TokenizerServiceError
from tests.application import application

RAISED: dict[str, Exception] = {
    "known": ApiError(404, "NotFoundError", "no such thing", "model"),
    "busy": too_many("later", retry_after_s=3),
    "text": TokenizerInputError("token id 99 is not in the vocabulary"),
    "service": TokenizerServiceError("the render service does not answer"),
    "bug": KeyError("secret detail"),
}


@pytest.fixture
def client() -> Iterator[FlaskClient]:
    def raise_named(context: RequestContext) -> Response:
        raise RAISED[context.params["name"]]

    def things(context: RequestContext) -> Response:
        return json_response({"ok": True})

    def own_form(error: Exception) -> Response:
        return json_response({"failed": str(error)}, 418)

    routes = [
        post("/raise/{name}", raise_named),
        post("/family/{name}", raise_named, own_form),
        get("/v1/things", things),
    ]
    with application(routes).test_client() as client:
        yield client


def test_every_error_has_a_message_a_type_a_param_and_a_code(client: FlaskClient) -> None:
    for name, status, kind, param in (
        ("known", 404, "NotFoundError", "model"),
        ("busy", 429, "RateLimitError", None),
        ("text", 400, "BadRequestError", None),
        ("service", 500, "InternalServerError", None),
        ("bug", 500, "InternalServerError", None),
    ):
        answer = client.post(f"/raise/{name}")
        assert (answer.status_code, answer.content_type) == (status, "application/json")
        error = answer.get_json()["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert (error["type"], error["param"], error["code"]) == (kind, param, status)
        assert answer.headers.get("Retry-After") == ("3" if name == "busy" else None)


def test_unexpected_error_is_logged_but_not_shown_to_the_client(
    client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert b"secret" not in client.post("/raise/bug").data
    assert "secret detail" in caplog.text


def test_handled_error_releases_its_traceback(client: FlaskClient) -> None:
    try:
        raise LookupError from RAISED["bug"]
    except LookupError as error:
        RAISED["chained"] = error
    client.post("/raise/chained")
    client.post("/raise/busy")
    assert RAISED["chained"].__traceback__ is None and RAISED["busy"].__traceback__ is None


def test_path_with_trailing_slashes_redirects_to_the_existing_route(client: FlaskClient) -> None:
    for path in ("/v1/things/", "/v1/things//"):
        answer = client.get(path + "?a=%20b")
        assert answer.status_code == 307
        assert answer.headers["Location"] == "http://localhost/v1/things?a=%20b"
    assert client.get("/nothing/").status_code == 404
    assert client.get("//evil.example/").status_code == 404


UNAVAILABLE = "Service Unavailable"
BAD = "BadRequestError"
INTERNAL = "InternalServerError"
TABLE: list[tuple[EngineError, int, str]] = [
    (errors.DrainingError(), 503, UNAVAILABLE),
    (errors.ShutdownError(), 500, INTERNAL),
    (errors.TooManyRequestsError(3, 4), 503, UNAVAILABLE),
    (errors.AbortedError(), 503, UNAVAILABLE),
    (errors.QueueFullError(7), 429, "RateLimitError"),
    (errors.PromptExceedsCacheError(32, 24), 400, BAD),
    (errors.UnsatisfiableSchemaError("a.b: no value"), 400, BAD),
    (errors.RequestRejectedError("No such form."), 400, BAD),
    (errors.PauseNotCompleteError(), 500, INTERNAL),
    (errors.MemoryNotResidentError(), 500, INTERNAL),
    (errors.EnginePausedError(), 503, "ServiceUnavailableError"),
    (errors.EngineDeadError(), 503, UNAVAILABLE),
    (errors.EngineFailedError("No numbers."), 500, INTERNAL),
    (errors.CommandFailedError("No memory."), 500, INTERNAL),
]


def test_each_engine_error_becomes_an_api_error_with_the_listed_status() -> None:
    for error, status, kind in TABLE:
        api_error = as_api_error(error)
        expected = {"message": str(error), "type": kind, "param": None, "code": status}
        assert str(error).endswith(".") or isinstance(error, errors.ShutdownError)
        assert (api_error.status, json.loads(api_error.body()), api_error.headers) == (
            status,
            {"error": expected},
            {},
        )
    engine_errors = {kind for kind in API_ERRORS if issubclass(kind, EngineError)}
    assert engine_errors == set(EngineError.__subclasses__()) == {type(row[0]) for row in TABLE}


def test_client_that_has_left_gets_the_status_that_logs_show() -> None:
    api_error = as_api_error(ClientLeftError())
    assert (api_error.status, api_error.type) == (499, "ClientClosedRequest")


def test_unexpected_stream_error_hides_its_details() -> None:
    api_error = ApiError(418, "Teapot", "short and stout")
    assert as_api_error(api_error) is api_error
    assert as_stream_error(api_error) is api_error
    unforeseen = as_stream_error(KeyError("secret"))
    assert (unforeseen.status, unforeseen.message) == (500, "The generation failed.")
