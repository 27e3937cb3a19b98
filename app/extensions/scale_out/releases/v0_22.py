"""Changes of vLLM 0.22 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
GENERATE = "/inference/v1/generate"


def edit_generated(answer: Any) -> None:
    """Leaves out the experts of the tokens."""
    for choice in answer.get("choices", ()):
        choice.pop("routed_experts", None)


CHANGES = (
    Change(
        area="Scale-out",
        before="Choices of `/inference/v1/generate` have no `routed_experts`.",
        after="Choices have `routed_experts`.",
        forms=(Answer(paths=(GENERATE,), edit=edit_generated),),
    ),
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` ignores `X-data-parallel-rank`.",
        after="The header chooses the rank.",
        forms=(Rules(SCALE_OUT_RULES, {"follows_rank": False}),),
        routes=(GENERATE,),
    ),
)
