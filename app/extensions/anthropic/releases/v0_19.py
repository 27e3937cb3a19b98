"""Changes of vLLM 0.19 to Messages."""

from app.core.versions.change import Change, Rules

MESSAGES_RULES = "app.extensions.anthropic.rules.MessageRules"
CHANGES = (
    Change(
        area="Messages",
        before="A stream ends with `data: [DONE]`.",
        after="The event `message_stop` is the last one.",
        forms=(Rules(MESSAGES_RULES, {"ends_with_done": True}),),
        routes=("/v1/messages",),
    ),
)
