"""What vLLM 0.33 changed in responses."""

from app.core.versions.change import Change, Rules
from app.extensions.responses.protocol import ResponsesRequest
from app.extensions.responses.rules import ResponseRules

CHANGES = (
    Change(
        area="Responses",
        before="`prompt_cache_options`, `prompt_cache_retention`, `safety_identifier`, and "
        "`spaces_between_special_tokens` are ignored.",
        after="These fields are validated. Responses repeat the first three fields and "
        "`prompt_cache_key`. The retention `in-memory` becomes `in_memory`.",
        forms=(Rules(ResponseRules, {"request_type": ResponsesRequest}),),
        routes=("/v1/responses",),
    ),
    Change(
        area="Responses",
        before="The last item of a response that reaches its token limit has the `completed` "
        "status. The stream ends with `response.completed`.",
        after="The last item has the `incomplete` status. The stream of an incomplete response "
        "ends with `response.incomplete`.",
        forms=(Rules(ResponseRules, {"incomplete_items": False}),),
        routes=("/v1/responses",),
    ),
)
