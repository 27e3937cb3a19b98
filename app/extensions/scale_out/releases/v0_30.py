"""Changes of vLLM 0.30 to the routes of scale-out."""

from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
GENERATE = "/inference/v1/generate"
RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


def edit_generated(answer: Any) -> None:
    """Leaves out the prompt's token IDs and media."""
    if isinstance(answer, dict):
        answer.pop("prompt_token_ids", None)
        answer.pop("mm_placeholders", None)


def last_choice(answer: Any, request: JsonObject) -> None:
    """Keeps the choice that ended last, and counts its tokens alone."""
    choices = answer.get("choices", ())
    if len(choices) < 2:
        return
    last = choices[-1]
    answer["choices"] = [last]
    usage = answer.get("usage")
    if usage is None:
        return
    usage["completion_tokens"] = len(last["token_ids"] or ())
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


CHANGES = (
    Change(
        area="Scale-out",
        before="The routes of scale-out are always on.",
        after="The routes answer with 403 without `--enable-scale-out`.",
        forms=(Rules(SCALE_OUT_RULES, {"is_gated": False}),),
        routes=(GENERATE, *RENDERED),
    ),
    Change(
        area="Scale-out",
        before="Rendered requests have no `return_token_ids`.",
        after="Rendered requests repeat `return_token_ids`.",
        routes=RENDERED,
    ),
    Change(
        area="Scale-out",
        before="Answers of `/inference/v1/generate` have neither `prompt_token_ids` nor "
        "`mm_placeholders`.",
        after="Answers have these fields.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
    Change(
        area="Scale-out",
        before="An answer of `/inference/v1/generate` with several choices has only the choice "
        "that ended last.",
        after="The answer has all choices.",
        forms=(Answer(paths=(GENERATE,), whole=last_choice),),
    ),
)
