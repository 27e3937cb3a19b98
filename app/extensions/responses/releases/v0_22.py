"""Changes of vLLM 0.22 to responses."""

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Change, Rules

RESPONSES_RULES = "app.extensions.responses.rules.ResponseRules"


def with_separate_items() -> JsonObject:
    """Returns the type of requests whose items are messages of their own."""
    from app.extensions.responses.protocol import SeparateItemsRequest

    return {"request_type": SeparateItemsRequest}


CHANGES = (
    Change(
        area="Responses",
        before="Each item of the input is a message of the prompt.",
        after="Calls are part of the assistant's message before them, and thoughts of that after "
        "them.",
        forms=(Rules(RESPONSES_RULES, with_separate_items),),
        routes=("/v1/responses",),
    ),
)
