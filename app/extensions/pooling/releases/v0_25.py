"""Changes of vLLM 0.25 to pooling."""

from typing import Any

from app.core.versions.change import Change, Reading
from app.core.versions.paths import POOLING


def accept_empty_salt(request: Any) -> None:
    """Removes an empty salt."""
    if request.get("cache_salt") == "":
        del request["cache_salt"]


CHANGES = (
    Change(
        area="Pooling",
        before="An empty `cache_salt` is accepted.",
        after="An empty `cache_salt` is an error.",
        forms=(Reading(paths=POOLING, read=accept_empty_salt),),
    ),
)
