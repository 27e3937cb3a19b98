"""Changes of vLLM 0.25 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change

RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")
NEW_IN_RENDERED = ("token_offsets", "assistant_tokens_mask")


def edit_rendered(answer: Any) -> None:
    """Leaves out what describes single tokens."""
    for request in answer if isinstance(answer, list) else [answer]:
        for name in NEW_IN_RENDERED:
            request.pop(name, None)


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have neither `token_offsets` nor `assistant_tokens_mask`.",
        after="Rendered requests have these fields.",
        forms=(Answer(paths=RENDERED, edit=edit_rendered),),
    ),
)
