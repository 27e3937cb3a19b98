"""Changes of vLLM 0.26 to pooling."""

from typing import Any

from app.core.versions.change import Change, Reading

PATHS = ("/v1/embeddings", "/pooling", "/classify")


def ignore_normalize(request: Any) -> None:
    """Removes the field."""
    request.pop("normalize", None)


CHANGES = (
    Change(
        area="Pooling",
        before="`normalize` is ignored, since vLLM 0.17.",
        after="`normalize` is an error.",
        forms=(Reading(paths=PATHS, read=ignore_normalize),),
    ),
)
