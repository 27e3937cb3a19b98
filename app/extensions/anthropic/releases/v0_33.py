"""What vLLM 0.33 changed in Messages."""

from app.core.versions.change import Change, Rules

MESSAGES_RULES = "app.extensions.anthropic.rules.MessageRules"
CHANGES = (
    Change(
        area="Messages",
        before="Errors have vLLM's types, such as `BadRequestError`.",
        after="Errors have Anthropic's types, such as `invalid_request_error`. In a stream, the "
        "error event follows the end of the open block.",
        forms=(Rules(MESSAGES_RULES, {"has_anthropic_types": False}),),
        routes=("/v1/messages", "/v1/messages/count_tokens"),
    ),
)
