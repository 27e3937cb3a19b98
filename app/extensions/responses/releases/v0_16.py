"""Changes of vLLM 0.16 to responses."""

from app.core.versions.change import Change, Rules

RESPONSE_RULES = "app.extensions.responses.rules.ResponseRules"
CHANGES = (
    Change(
        area="Responses",
        before="`max_output_tokens` that exceed the context are lowered.",
        after="They are an error, up to vLLM 0.31.",
        forms=(Rules(RESPONSE_RULES, {"clips_limits": True}),),
        routes=("/v1/responses",),
    ),
)
