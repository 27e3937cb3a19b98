"""Changes of vLLM 0.30 to responses."""

from typing import Any

from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.change import Answer, Change, Reading
from app.core.versions.older_requests import objects_in
from app.extensions.responses.releases.v0_32 import CUSTOM_CALLS

PATHS = ("/v1/responses",)
REFERENCE = "Unsupported input item type: item_reference"
ENCRYPTED = "Encrypted content is not supported."


def check_items(request: Any) -> None:
    """Fails at items of custom tools.

    Raises:
        ApiError: 500 for the first item.
    """
    for item in objects_in(request.get("input")):
        if item.get("type") in CUSTOM_CALLS:
            raise internal("'role'")


def fail_without_field(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error about an item, which names no field."""
    if error.message.startswith(REFERENCE):
        return internal("'role'")
    if error.message.startswith(ENCRYPTED):
        return bad_request(ENCRYPTED)
    return None


CHANGES = (
    Change(
        area="Responses",
        before="Items of custom tools and references to items fail with 500.",
        after="Such items are rejected with 400.",
        forms=(
            Reading(paths=PATHS, read=check_items),
            Answer(paths=PATHS, failure=fail_without_field),
        ),
    ),
)
