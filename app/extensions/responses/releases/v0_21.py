"""Changes of vLLM 0.21 to responses."""

from typing import Any

from app.core.server.http.errors import internal
from app.core.versions.change import Change, Reading

PATHS = ("/v1/responses",)


def fail_at_thoughts(request: Any) -> None:
    """Fails at encrypted thoughts.

    Raises:
        ApiError: 500.
    """
    items = request.get("input")
    for item in items if isinstance(items, list) else ():
        is_thought = isinstance(item, dict) and item.get("type") == "reasoning"
        if is_thought and item.get("encrypted_content"):
            raise internal("'role'")


CHANGES = (
    Change(
        area="Responses",
        before="Thoughts with `encrypted_content` in the input fail with 500.",
        after="They fail with 400.",
        forms=(Reading(paths=PATHS, read=fail_at_thoughts),),
    ),
)
