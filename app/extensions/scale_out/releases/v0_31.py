"""Changes of vLLM 0.31 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change

GENERATE = "/inference/v1/generate"
RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


def edit_generated(answer: Any) -> None:
    """Leaves out the metrics and the log probabilities of a prompt's token IDs."""
    if isinstance(answer, dict):
        answer.pop("metrics", None)
        answer.pop("prompt_token_id_logprobs", None)


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have `assistant_tokens_mask`, null.",
        after="Rendered requests do not have the field.",
        routes=RENDERED,
    ),
    Change(
        area="Scale-out",
        before="Answers of `/inference/v1/generate` have neither `metrics` nor "
        "`prompt_token_id_logprobs`.",
        after="Answers have these fields.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
)
