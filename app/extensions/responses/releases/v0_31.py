"""Changes of vLLM 0.31 to responses."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer, Change, Event

PATHS = ("/v1/responses", "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel")


def edit_usage(answer: Any) -> None:
    """Leaves out the tokens that were written to a cache."""
    response = answer.get("response", answer)
    usage = response.get("usage")
    if isinstance(usage, dict):
        usage["input_tokens_details"].pop("cache_write_tokens", None)


def with_part_names(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that gives the parts of thoughts events of their own."""

    def older(event: Event) -> Iterator[Event]:
        name, data = event
        part: Any = data.get("part")
        if isinstance(part, dict) and part.get("type") == "reasoning_text":
            name = name.replace("content_part", "reasoning_part")
            data["type"] = name
        yield name, data

    return older


CHANGES = (
    Change(
        area="Responses",
        before="The parts of thoughts have the events `response.reasoning_part.added` and "
        "`response.reasoning_part.done`.",
        after="They have the events of all parts, `response.content_part.added` and "
        "`response.content_part.done`.",
        forms=(Answer(paths=PATHS[:2], events=with_part_names),),
        options=("reasoning-parser",),
    ),
    Change(
        area="Responses",
        before="`usage.input_tokens_details` has no `cache_write_tokens`.",
        after="`usage.input_tokens_details` has `cache_write_tokens`.",
        forms=(Answer(paths=PATHS, edit=edit_usage),),
    ),
)
