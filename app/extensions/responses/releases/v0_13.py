"""Changes of vLLM 0.13 to responses."""

from app.core.versions.change import Change, Rules

RESPONSE_RULES = "app.extensions.responses.rules.ResponseRules"
CHANGES = (
    Change(
        area="Responses",
        before="Tools are in the prompt if `tool_choice` is `none`.",
        after="They are not in the prompt, up to vLLM 0.26.",
        forms=(Rules(RESPONSE_RULES, {"hides_unused_tools": False}),),
        routes=("/v1/responses",),
    ),
)
