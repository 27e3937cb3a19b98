"""Changes of vLLM 0.11 to responses."""

from typing import Any

from app.core.versions.change import Answer, Change

PATHS = ("/v1/responses", "/v1/responses/{response_id}")
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


CHANGES = (
    Change(
        area="Responses",
        before="`usage` counts the tokens of all turns together.",
        after="`usage` counts those of each turn, too.",
        forms=(Answer(paths=PATHS, edit=count_once),),
    ),
)
