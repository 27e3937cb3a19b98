"""Changes of vLLM 0.25 to the routes of scale-out."""

from app.core.versions.change import Change

RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have neither `token_offsets` nor `assistant_tokens_mask`.",
        after="Rendered requests have these fields.",
        routes=RENDERED,
    ),
)
