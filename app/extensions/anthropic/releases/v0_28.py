"""Changes of vLLM 0.28 to Messages."""

from http import HTTPStatus
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Reading

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
MAX_STOPS = 4


def fail_internally(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a request that fits the schema."""
    if error.status != HTTPStatus.BAD_REQUEST or error.type != "BadRequestError":
        return None
    return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", error.message)


def accept_stops(request: Any) -> None:
    """Keeps the stop sequences that newer versions accept."""
    stops = request.get("stop_sequences")
    if isinstance(stops, list):
        del stops[MAX_STOPS:]


CHANGES = (
    Change(
        area="Messages",
        before="A message that breaks a rule beyond the schema fails with 500.",
        after="It fails with 400.",
        forms=(Answer(paths=PATHS, failure=fail_internally),),
    ),
    Change(
        area="Messages",
        before="A message may have any number of stop sequences.",
        after="A message has at most four stop sequences.",
        forms=(Reading(paths=PATHS, read=accept_stops),),
    ),
)
