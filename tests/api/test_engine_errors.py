"""What the engine refuses is told in vLLM's words, the same before a stream and inside it."""

from __future__ import annotations

import json

from app.engine.core import errors
from app.engine.core.errors import EngineError
from app.serving.api.errors import KNOWN_ERRORS, as_api_error, as_stream_error
from app.serving.http.errors import ApiError

UNAVAILABLE, BAD, INTERNAL = "Service Unavailable", "BadRequestError", "InternalServerError"
LEFT = "The client left before what it had asked for was done."
BUSY = "The server holds 3 of at most 4 requests; retry later."
PAUSE, MEMORY = "a completed pause first", "all memory to be resident"
TABLE: list[tuple[EngineError, int, str, str]] = [
    (errors.Draining(), 503, UNAVAILABLE, "The server is shutting down and takes no new requests."),
    (errors.TooManyRequests(3, 4), 503, UNAVAILABLE, BUSY),
    (errors.Aborted(), 503, UNAVAILABLE, "The request was aborted by the server."),
    (
        *(errors.QueueFull(7), 429, "RateLimitError"),
        "The waiting requests queue is full: 7 wait already; retry later.",
    ),
    (
        *(errors.PromptExceedsCache(32, 24), 400, BAD),
        "The prompt of 32 tokens exceeds the KV cache of 24 tokens.",
    ),
    (
        *(errors.SchemaUnsatisfiable("a.b: no value"), 400, BAD),
        "No reply can have the form that is asked for: a.b: no value.",
    ),
    (errors.RequestRefused("No such form."), 400, BAD, "No such form."),
    (errors.CallerLeft(), 499, "ClientClosedRequest", LEFT),
    (errors.PauseNotComplete(), 500, INTERNAL, f"To release the KV cache requires {PAUSE}."),
    (errors.MemoryNotResident(), 500, INTERNAL, f"To release the KV cache requires {MEMORY}."),
    (
        *(errors.EngineDead(), 500, INTERNAL),
        "The engine has stopped and is being started again; retry later.",
    ),
    (errors.EngineFailed("No numbers."), 500, INTERNAL, "No numbers."),
    (errors.CommandFailed("No memory."), 500, INTERNAL, "No memory."),
]


def test_each_error_has_its_status_type_and_text() -> None:
    for error, status, kind, message in TABLE:
        known = as_api_error(error)
        told = {"message": message, "type": kind, "param": None, "code": status}
        assert (known.status, json.loads(known.body()), known.headers) == (status, {"error": told}, {})
    engine_errors = {kind for kind in KNOWN_ERRORS if issubclass(kind, EngineError)}
    assert engine_errors == set(EngineError.__subclasses__()) == {type(row[0]) for row in TABLE}


def test_an_error_for_clients_stays_what_it_is_and_of_others_nothing_is_told() -> None:
    known = ApiError(418, "Teapot", "short and stout")
    assert as_api_error(known) is known
    assert as_stream_error(known) is known
    unforeseen = as_stream_error(KeyError("secret"))
    assert (unforeseen.status, unforeseen.message) == (500, "The generation failed.")
