"""Changes of vLLM 0.31 to the scores of labels."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request
from app.core.versions.change import Answer, Change


def fail_without_path(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a request that does not fit its schema, which names no field."""
    return bad_request(error.message) if error.type == "Bad Request" else None


CHANGES = (
    Change(
        area="Scores of labels",
        before="An invalid field is an error of the type `BadRequestError`.",
        after="The error has the type `Bad Request` and names the field.",
        forms=(Answer(paths=("/generative_scoring",), failure=fail_without_path),),
    ),
)
