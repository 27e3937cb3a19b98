"""Changes of vLLM 0.11 to responses."""

import re
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change
from app.core.versions.paths import STORED

PATHS = ("/v1/responses", *STORED)
UNKNOWN = re.compile(r"Response with id '(?P<id>.*)' not found\.")


def fail_at_id(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of an id that no response can have."""
    match = UNKNOWN.match(error.message)
    if match is None or match["id"].startswith("resp_"):
        return None
    message = f"Invalid 'response_id': '{match['id']}'. Expected an ID that begins with 'resp'."
    return ApiError(400, error.type, message)


CHANGES = (
    Change(
        area="Responses",
        before="An id that does not begin with `resp_` fails with 400.",
        after="It fails with 404.",
        forms=(Answer(paths=PATHS, failure=fail_at_id),),
    ),
)
