"""Changes of vLLM 0.29 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Change, Reading

GENERATE = "/inference/v1/generate"


def accept_empty_salt(request: Any) -> None:
    """Removes an empty salt, which has no effect."""
    if request.get("cache_salt") == "":
        del request["cache_salt"]


CHANGES = (
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` ignores an empty `cache_salt`.",
        after="An empty `cache_salt` is an error.",
        forms=(Reading(paths=(GENERATE,), read=accept_empty_salt),),
    ),
)
