"""Changes of vLLM 0.17 to responses."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Change, Reading

PATHS = ("/v1/responses",)


def refuse_objects(request: Any) -> None:
    """Refuses a reply in JSON without a schema.

    Raises:
        ApiError: 500.
    """
    text = request.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if isinstance(form, dict) and form.get("type") == "json_object":
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        raise ApiError(status, status.phrase, "json_object is not supported")


CHANGES = (
    Change(
        area="Responses",
        before="The format `json_object` fails with 500.",
        after="The reply is a JSON object.",
        forms=(Reading(paths=PATHS, read=refuse_objects),),
    ),
)
