"""Changes of vLLM 0.31 to Messages."""

from typing import Any

from app.core.versions.change import Change, Reading, Rules

MESSAGES_RULES = "app.extensions.anthropic.rules.MessageRules"
MIN_BUDGET_TOKENS = 1024


def accept_small_budget(request: Any) -> None:
    """Leaves out thoughts with a budget that newer versions reject."""
    thinking = request.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") == "enabled":
        budget = thinking.get("budget_tokens")
        if budget is None or (isinstance(budget, int) and budget < MIN_BUDGET_TOKENS):
            del request["thinking"]


CHANGES = (
    Change(
        area="Messages",
        before="`thinking.budget_tokens` may be missing, or less than 1,024.",
        after="`thinking.budget_tokens` is required, and is at least 1,024.",
        forms=(Reading(paths=("/v1/messages",), read=accept_small_budget),),
    ),
    Change(
        area="Messages",
        before="Messages with the role `system` are joined with the system prompt, unless a "
        "template of `--chat-template` accepts them in between.",
        after="The model's own template decides, too.",
        forms=(Rules(MESSAGES_RULES, {"probes_model_template": False}),),
        routes=("/v1/messages", "/v1/messages/count_tokens"),
    ),
)
