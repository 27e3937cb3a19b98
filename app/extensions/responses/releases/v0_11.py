"""Changes of vLLM 0.11 to responses."""

from typing import Any

from app.core.server.http.errors import bad_request
from app.core.versions.change import Answer, Change, Reading

PATHS = ("/v1/responses", "/v1/responses/{response_id}")
HARMONY = "gpt-oss"
BY_TURN = (
    "input_tokens_per_turn",
    "cached_tokens_per_turn",
    "output_tokens_per_turn",
    "tool_output_tokens_per_turn",
)


def count_once(answer: Any) -> None:
    """Removes the counts of each turn."""
    usage = answer.get("response", answer).get("usage")
    for details in usage.values() if isinstance(usage, dict) else ():
        for name in BY_TURN if isinstance(details, dict) else ():
            details.pop(name, None)


def refuse_tools(request: Any) -> None:
    """Refuses tools, which only the parser of gpt-oss reads.

    Raises:
        ApiError: 400.
    """
    request.pop("enable_response_messages", None)
    if request.get("tools") and HARMONY not in str(request.get("model")):
        raise bad_request("Tool use is not supported in Responses API without Harmony None")


CHANGES = (
    Change(
        area="Responses",
        before="`tools` are an error, unless the model is gpt-oss.",
        after="`tools` are accepted.",
        forms=(Reading(paths=PATHS[:1], read=refuse_tools),),
    ),
    Change(
        area="Responses",
        before="`usage` counts the tokens of all turns together.",
        after="`usage` counts those of each turn, too.",
        forms=(Answer(paths=PATHS, edit=count_once),),
    ),
)
