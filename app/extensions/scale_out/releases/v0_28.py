"""Changes of vLLM 0.28 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change

GENERATE = "/inference/v1/generate"
RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


def edit_generated(answer: Any) -> None:
    """Leaves out the sampling masks, and details of generated tokens."""
    if not isinstance(answer, dict):
        return
    for choice in answer.get("choices", ()):
        choice.pop("sampling_mask", None)
    usage = answer.get("usage")
    if isinstance(usage, dict):
        usage.pop("completion_tokens_details", None)


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have no `content_parts`.",
        after="Rendered requests have `content_parts`, null for texts.",
        routes=RENDERED,
    ),
    Change(
        area="Scale-out",
        before="Choices of `/inference/v1/generate` have no `sampling_mask`.",
        after="Choices have `sampling_mask`.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
)
