"""Changes of vLLM 0.14 to errors and KV events."""

import re
from typing import Any

from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.long_prompts import fail_with_cause
from app.core.versions.paths import COMPLETIONS, STORED, VALIDATED

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"
PARAMETER = re.compile(r" \(parameter=\w+(?:, value=.*)?\)(?=$| None$)", re.DOTALL)
"""End of the message of an error of a rule."""


def fail_without_param(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a rule without the name of its field."""
    message = PARAMETER.sub("", error.message)
    if error.param is None and message == error.message:
        return None
    return ApiError(error.status, error.type, message)


CHANGES = (
    Change(
        area="Chat and completions",
        before="The error of a completion whose `max_tokens` exceed the context has the length "
        "that they leave to the prompt.",
        after="The error says that `max_tokens` cannot be greater than the context.",
        routes=COMPLETIONS,
    ),
    Change(
        area="Responses",
        before="The error of an input that is too long ends with `None`.",
        after="The error ends with the field and its value.",
        forms=(Answer(paths=("/v1/responses",), failure=fail_with_cause),),
    ),
    Change(
        area="Errors",
        before="`param` of an error is null, and its message has no `(parameter=...)`.",
        after="`param` is the field of a rule, and the message ends with it and its value.",
        forms=(Answer(paths=(*VALIDATED, *STORED), failure=fail_without_param),),
    ),
    Change(
        area="KV events",
        before="Stored blocks of KV events have no `lora_name`.",
        after="Stored blocks have `lora_name`.",
        forms=(Rules(EVENT_RULES, {"layout": "0.10.2"}),),
        options=("kv-events-config",),
    ),
)
