"""Changes of vLLM 0.31 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
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
        before="`/v1/chat/completions/derender` does not need `chat_request`. Without it, the "
        "message is the text of the tokens.",
        after="A server with a parser for tools or thoughts needs `chat_request`.",
        forms=(Rules(SCALE_OUT_RULES, {"requires_chat": False}),),
        routes=("/v1/chat/completions/derender",),
    ),
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
