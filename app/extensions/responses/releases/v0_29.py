"""Changes of vLLM 0.29 to responses."""

from typing import Any

from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import check_json, objects_in


def check_arguments(request: Any) -> None:
    """Fails at calls whose arguments are not JSON.

    Raises:
        ApiError: 400 for the first call.
    """
    for item in objects_in(request.get("input")):
        if item.get("type") == "function_call":
            check_json(item.get("arguments"))


CHANGES = (
    Change(
        area="Responses",
        before="Calls whose arguments are not JSON are an error.",
        after="Such arguments are rendered as text.",
        forms=(Reading(paths=("/v1/responses",), read=check_arguments),),
    ),
)
