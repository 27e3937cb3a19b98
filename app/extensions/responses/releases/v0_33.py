"""Changes of vLLM 0.33 to responses."""

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Change, Rules

RESPONSES_RULES = "app.extensions.responses.rules.ResponseRules"


def without_cache_fields() -> JsonObject:
    """Returns the type of requests without fields about the prompt cache."""
    from app.extensions.responses.protocol import ResponsesRequest

    return {"request_type": ResponsesRequest}


CHANGES = (
    Change(
        area="Responses",
        before="`prompt_cache_options`, `prompt_cache_retention`, `safety_identifier`, and "
        "`spaces_between_special_tokens` are ignored.",
        after="These fields are validated. Responses repeat the first three fields and "
        "`prompt_cache_key`. The retention `in-memory` becomes `in_memory`.",
        forms=(Rules(RESPONSES_RULES, without_cache_fields),),
        routes=("/v1/responses",),
    ),
    Change(
        area="Responses",
        before="The last item of a response that reaches its token limit has the `completed` "
        "status. The stream ends with `response.completed`.",
        after="The last item has the `incomplete` status. The stream of an incomplete response "
        "ends with `response.incomplete`.",
        forms=(Rules(RESPONSES_RULES, {"incomplete_items": False}),),
        routes=("/v1/responses",),
    ),
)
