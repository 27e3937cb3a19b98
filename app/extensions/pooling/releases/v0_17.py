"""Changes of vLLM 0.17 to pooling."""

from typing import Any

from app.core.versions.change import Absent, Change, Reading

PATHS = ("/v1/embeddings", "/pooling")
KEPT = ("EmbeddingCompletionRequest.use_activation", "EmbeddingChatRequest.use_activation")


def rename_normalize(request: Any) -> None:
    """Gives the field its later name."""
    normalize = request.pop("normalize", None)
    if normalize is not None:
        request["use_activation"] = normalize


CHANGES = (
    Change(
        area="Pooling",
        before="`normalize: false` leaves the length of a vector as it is.",
        after="`use_activation: false` does so, also since vLLM 0.16.",
        forms=(Absent(kept=KEPT), Reading(paths=PATHS, read=rename_normalize)),
    ),
)
