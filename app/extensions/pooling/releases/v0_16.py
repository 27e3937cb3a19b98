"""Changes of vLLM 0.16 to pooling."""

from typing import Any

from app.core.versions.change import Change, Reading

EMBEDDINGS = ("/v1/embeddings",)
SCORES = ("/score", "/v1/score")


def ignore_activation(request: Any) -> None:
    """Removes the field of embeddings."""
    request.pop("use_activation", None)


def ignore_items(request: Any) -> None:
    """Removes the items of a score."""
    request.pop("items", None)


CHANGES = (
    Change(
        area="Pooling",
        before="Embeddings ignore `use_activation`.",
        after="Embeddings have `use_activation`.",
        forms=(Reading(paths=EMBEDDINGS, read=ignore_activation),),
    ),
    Change(
        area="Pooling",
        before="Scores have no `items`.",
        after="`queries` may be compared with `items`.",
        forms=(Reading(paths=SCORES, read=ignore_items),),
    ),
)
