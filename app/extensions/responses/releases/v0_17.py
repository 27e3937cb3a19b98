"""Changes of vLLM 0.17 to responses."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError
from app.core.versions.change import Answer, Change, Event, Reading

PATHS = ("/v1/responses",)
STREAMED = ("/v1/responses", "/v1/responses/{response_id}")
NO_OBJECTS = "json_object is not supported"
OF_ITEMS = ("phase", "caller", "async_", "namespace")
OF_TOOLS = (
    *("allowed_callers", "async_", "defer_loading", "output_schema"),
    *("search_content_types", "tunnel_id"),
)
OF_REASONING = ("mode", "context")
"""Fields that came with later versions of the package `openai`."""


def refuse_objects(request: Any) -> None:
    """Refuses a reply in JSON without a schema, with the status of a success.

    Raises:
        ApiError: 200, whose code is 400.
    """
    text = request.get("text")
    form = text.get("format") if isinstance(text, dict) else None
    if isinstance(form, dict) and form.get("type") == "json_object":
        error = ApiError(200, "BadRequestError", NO_OBJECTS)
        error.code = 400
        raise error


def narrow(answer: Any) -> None:
    """Removes the fields from a response, or from the data of an event."""
    response = answer.get("response", answer)
    _remove([*(response.get("output") or ()), answer.get("item")], OF_ITEMS)
    _remove(response.get("tools") or (), OF_TOOLS)
    _remove([response.get("reasoning")], OF_REASONING)


def _remove(parts: Iterable[Any], names: Sequence[str]) -> None:
    for part in parts:
        for name in names if isinstance(part, dict) else ():
            part.pop(name, None)


def count_parts(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that counts the events of an item as if each were another part."""
    count = 0

    def older(event: Event) -> Iterator[Event]:
        nonlocal count
        name, data = event
        if name == "response.output_item.added":
            count = 0
        if "content_index" in data:
            data["content_index"] = count
            count += 1
        yield event

    return older


def without_thought_parts(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that begins thoughts as texts, and leaves out the end of their part."""
    removed = 0

    def older(event: Event) -> Iterator[Event]:
        nonlocal removed
        name, data = event
        if name == "response.reasoning_part.done":
            removed += 1
            return
        if name == "response.reasoning_part.added":
            name = "response.content_part.added"
            data["type"] = name
            data["part"] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        if "sequence_number" in data:
            data["sequence_number"] -= removed
        yield name, data

    return older


CHANGES = (
    Change(
        area="Responses",
        before="A thought begins with `response.content_part.added` and a part of the type "
        "`output_text`. No event ends the part.",
        after="It begins with `response.reasoning_part.added`, and ends with "
        "`response.reasoning_part.done`.",
        forms=(Answer(paths=STREAMED, events=without_thought_parts),),
        options=("reasoning-parser",),
    ),
    Change(
        area="Responses",
        before="`content_index` grows with each event of an item.",
        after="It is the index of the part.",
        forms=(Answer(paths=STREAMED, events=count_parts),),
    ),
    Change(
        area="Responses",
        before="Messages have no `phase`, calls no `caller`, tools no `allowed_callers`, "
        "`defer_loading` and `output_schema`, and `reasoning` no `mode` and `context`.",
        after="They have these fields.",
        forms=(Answer(paths=STREAMED, edit=narrow),),
    ),
    Change(
        area="Responses",
        before="The format `json_object` fails; the answer has the status 200 and the code 400.",
        after="The reply is a JSON object.",
        forms=(Reading(paths=PATHS, read=refuse_objects),),
    ),
)
