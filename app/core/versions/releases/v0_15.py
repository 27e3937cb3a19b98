"""Changes of vLLM 0.15 to chats, completions and errors."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.boundary import TextError
from app.core.versions.change import Answer, Change, Reading
from app.core.versions.long_prompts import fail_with_cause
from app.core.versions.paths import CHATS, GENERATING, INVOCATIONS, VALIDATED

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
PATHS = (*CHATS, "/v1/messages")


def fail_with_phrase(error: ApiError, request: Any) -> ApiError | None:
    """Returns an error that no rule foresees, whose type is the phrase of the status."""
    if error.type != "InternalServerError" or isinstance(error, TextError):
        return None
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return ApiError(status, status.phrase, error.message)


def ignore_no_constraints(request: Any) -> None:
    """Removes constraints of no kind, and a format without a schema."""
    constraints = request.get("structured_outputs")
    if isinstance(constraints, dict) and all(constraints.get(kind) is None for kind in KINDS):
        del request["structured_outputs"]
    form = request.get("response_format")
    is_schema = isinstance(form, dict) and form.get("type") == "json_schema"
    schema = form.get("json_schema") if is_schema else None
    if isinstance(schema, dict) and "name" in schema and schema.get("schema") is None:
        del request["response_format"]


CHANGES = (
    Change(
        area="Chat and completions",
        before="Structured outputs of no kind, and a `json_schema` without a `schema`, constrain "
        "nothing.",
        after="Both are errors.",
        forms=(Reading(paths=(*GENERATING, INVOCATIONS), read=ignore_no_constraints),),
    ),
    Change(
        area="Errors",
        before="An error that no rule foresees has the type `Internal Server Error`.",
        after="The error has the type `InternalServerError`.",
        forms=(Answer(paths=VALIDATED, failure=fail_with_phrase),),
    ),
    Change(
        area="Errors",
        before="The error of a conversation that is too long ends with `None`; its `param` is "
        "null.",
        after="The error ends with the field and its value; `param` is the field.",
        forms=(Answer(paths=PATHS, failure=fail_with_cause),),
    ),
)
