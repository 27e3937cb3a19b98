"""Changes of vLLM 0.18 to Messages."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change

PATHS = ("/v1/messages", "/v1/messages/count_tokens")


def fail_with_client(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a request that fits the schema."""
    if error.type != "internal_error":
        return None
    return ApiError(HTTPStatus.BAD_REQUEST, "BadRequestError", error.message)


CHANGES = (
    Change(
        area="Messages",
        before="A message that breaks a rule beyond the schema fails with 400.",
        after="It fails with 500, up to vLLM 0.27.",
        forms=(Answer(paths=PATHS, failure=fail_with_client),),
    ),
)
