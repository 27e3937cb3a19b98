"""What the engine refuses is told in vLLM's words, the same before a stream and inside it."""

from __future__ import annotations

import json

from app.engine.core import errors
from app.engine.core.errors import EngineError
from app.serving.api.errors import KNOWN_ERRORS, as_api_error, as_stream_error
from app.serving.http.errors import ApiError

UNAVAILABLE, BAD, INTERNAL = "Service Unavailable", "BadRequestError", "InternalServerError"
TABLE: list[tuple[EngineError, int, str]] = [
    (errors.Draining(), 503, UNAVAILABLE),
    (errors.TooManyRequests(3, 4), 503, UNAVAILABLE),
    (errors.Aborted(), 503, UNAVAILABLE),
    (errors.QueueFull(7), 429, "RateLimitError"),
    (errors.PromptExceedsCache(32, 24), 400, BAD),
    (errors.SchemaUnsatisfiable("a.b: no value"), 400, BAD),
    (errors.RequestRefused("No such form."), 400, BAD),
    (errors.CallerLeft(), 499, "ClientClosedRequest"),
    (errors.PauseNotComplete(), 500, INTERNAL),
    (errors.MemoryNotResident(), 500, INTERNAL),
    (errors.EngineDead(), 500, INTERNAL),
    (errors.EngineFailed("No numbers."), 500, INTERNAL),
    (errors.CommandFailed("No memory."), 500, INTERNAL),
]


def test_each_error_has_its_status_type_and_text() -> None:
    for error, status, kind in TABLE:
        known = as_api_error(error)
        told = {"message": str(error), "type": kind, "param": None, "code": status}
        assert str(error).endswith(".")
        assert (known.status, json.loads(known.body()), known.headers) == (status, {"error": told}, {})
    engine_errors = {kind for kind in KNOWN_ERRORS if issubclass(kind, EngineError)}
    assert engine_errors == set(EngineError.__subclasses__()) == {type(row[0]) for row in TABLE}


def test_an_error_for_clients_stays_what_it_is_and_of_others_nothing_is_told() -> None:
    known = ApiError(418, "Teapot", "short and stout")
    assert as_api_error(known) is known
    assert as_stream_error(known) is known
    unforeseen = as_stream_error(KeyError("secret"))
    assert (unforeseen.status, unforeseen.message) == (500, "The generation failed.")
