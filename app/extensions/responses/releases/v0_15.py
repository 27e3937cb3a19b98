"""Changes of vLLM 0.15 to responses."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change
from app.extensions.responses.releases.v0_17 import NO_OBJECTS


def fail_at_objects(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a reply in JSON without a schema."""
    if error.message != NO_OBJECTS:
        return None
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    return ApiError(status, status.phrase, error.message)


CHANGES = (
    Change(
        area="Responses",
        before="The format `json_object` fails with 500.",
        after="The answer has the status 200 and the code 400, up to vLLM 0.16.",
        forms=(Answer(paths=("/v1/responses",), failure=fail_at_objects),),
    ),
)
