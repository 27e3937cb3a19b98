"""Changes of vLLM 0.21 to responses."""

from typing import Any

from app.core.server.http.errors import internal
from app.core.versions.change import Change, Reading
from app.core.versions.older_requests import objects_in

PATHS = ("/v1/responses",)


def fail_at_thoughts(request: Any) -> None:
    """Fails at thoughts.

    Raises:
        ApiError: 500.
    """
    for item in objects_in(request.get("input")):
        if item.get("type") == "reasoning":
            raise internal("'role'")


CHANGES = (
    Change(
        area="Responses",
        before="Thoughts in the input fail with 500.",
        after="Thoughts are part of the prompt. With `encrypted_content`, they fail with 400.",
        forms=(Reading(paths=PATHS, read=fail_at_thoughts),),
    ),
)
