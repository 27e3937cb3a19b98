"""Changes of vLLM 0.27 to responses."""

from app.core.versions.change import Change, Rules

RESPONSE_RULES = "app.extensions.responses.rules.ResponseRules"
CHANGES = (
    Change(
        area="Responses",
        before="Tools are not in the prompt if `tool_choice` is `none`.",
        after="They are in the prompt, unless `--exclude-tools-when-tool-choice-none` is set.",
        forms=(Rules(RESPONSE_RULES, {"hides_unused_tools": True}),),
        routes=("/v1/responses",),
    ),
)
