"""What the engine refuses is told in vLLM's words, the same before a stream and inside it."""

from __future__ import annotations

import json

import pytest

from app.engine.core import errors
from app.engine.core.errors import EngineError
from app.serving.api.errors import ENGINE_ERRORS, as_api_error, as_stream_error
from app.serving.http.errors import ApiError

TABLE: list[tuple[EngineError, int, str, str | None, str]] = [
    (
        errors.Draining(),
        503,
        "Service Unavailable",
        None,
        "The server is shutting down and takes no new requests.",
    ),
    (
        errors.TooManyRequests(3, 4),
        503,
        "Service Unavailable",
        None,
        "The server holds 3 of at most 4 requests; retry later.",
    ),
    (
        errors.QueueFull(7),
        429,
        "RateLimitError",
        None,
        "The waiting requests queue is full: 7 wait already; retry later.",
    ),
    (
        errors.KVCacheFull(),
        503,
        "ServiceUnavailableError",
        None,
        "The KV cache has too few free blocks for the prompt; retry later.",
    ),
    (
        errors.PromptExceedsCache(32, 24),
        400,
        "BadRequestError",
        None,
        "The prompt of 32 tokens exceeds the KV cache of 24 tokens.",
    ),
    (errors.Aborted(), 503, "Service Unavailable", None, "The request was aborted by the server."),
    (
        errors.SchemaUnsatisfiable("a.b: no value"),
        400,
        "BadRequestError",
        None,
        "No reply can have the form that is asked for: a.b: no value.",
    ),
    (
        errors.CallerLeft(),
        499,
        "ClientClosedRequest",
        None,
        "The client left before what it had asked for was done.",
    ),
    (
        errors.PauseNotComplete(),
        500,
        "InternalServerError",
        None,
        "To release the KV cache requires a completed pause first.",
    ),
    (
        errors.MemoryNotResident(),
        500,
        "InternalServerError",
        None,
        "To release the KV cache requires all memory to be resident.",
    ),
    (
        errors.EngineDead(),
        500,
        "InternalServerError",
        None,
        "The engine has stopped and is being started again; retry later.",
    ),
    (errors.EngineFailed("No numbers."), 500, "InternalServerError", None, "No numbers."),
    (errors.CommandFailed("No memory."), 500, "InternalServerError", None, "No memory."),
    (errors.RequestRefused("No such form."), 400, "BadRequestError", None, "No such form."),
]


@pytest.mark.parametrize(("error", "status", "kind", "param", "message"), TABLE)
def test_each_error_has_its_status_type_and_text(
    error: EngineError, status: int, kind: str, param: str | None, message: str
) -> None:
    known = as_api_error(error)
    told = {"message": message, "type": kind, "param": param, "code": status}
    assert (known.status, json.loads(known.body()), known.headers) == (status, {"error": told}, {})


def test_no_error_of_the_engine_is_left_out() -> None:
    assert set(ENGINE_ERRORS) == set(EngineError.__subclasses__()) == {type(row[0]) for row in TABLE}


def test_an_error_for_clients_stays_what_it_is_and_of_others_nothing_is_told() -> None:
    known = ApiError(418, "Teapot", "short and stout")
    assert as_api_error(known) is known
    assert as_stream_error(known) is known
    unforeseen = as_stream_error(KeyError("secret"))
    assert (unforeseen.status, unforeseen.message) == (500, "The generation failed.")
