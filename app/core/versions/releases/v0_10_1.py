"""Changes of vLLM 0.10.1 to errors."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode
from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Event
from app.core.versions.paths import STORED, VALIDATED

STREAMED = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
FLAT = {"object": "error"}
"""The field that marks an error; no other object contains it."""


class FlatError(ApiError):
    """An error whose body has its fields at the top."""

    def body(self) -> bytes:
        """The compact JSON body: ``{"object","message","type","param","code"}``."""
        fields = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return encode(FLAT | fields)


def flatten_error(error: ApiError, request: Any) -> ApiError:
    """Returns the error with another body."""
    flat = FlatError(error.status, error.type, error.message, error.param, error.headers)
    flat.code = error.code
    return flat


def flatten_answer(answer: Any, request: JsonObject) -> JsonObject | None:
    """Returns the fields of an error that has the status of a success."""
    if isinstance(answer, dict) and answer.keys() == {"error"}:
        fields: JsonObject = answer["error"]
        return FLAT | fields
    return None


def name_error(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that puts a flat error of a stream into the field `error` again."""

    def older(event: Event) -> Iterator[Event]:
        name, fields = event
        if fields.get("object") == "error":
            fields = {"error": fields}
        yield name, fields

    return older


CHANGES = (
    Change(
        area="Errors",
        before='The body of an error is `{"object": "error", "message": ..., "code": ...}`.',
        after="The same fields are in `error`. Events of streams have had this field before.",
        forms=(
            Answer(
                paths=(*VALIDATED, *STORED),
                failure=flatten_error,
                whole=flatten_answer,
            ),
            Answer(paths=STREAMED, events=name_error),
        ),
    ),
)
