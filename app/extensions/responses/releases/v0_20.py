"""What vLLM 0.20 changed in responses."""

from collections.abc import Callable, Iterator
from typing import Any

from app.core.versions.change import Answer, Change, Event, JsonObject, Reading

PATHS = ("/v1/responses",)


def accept_required(request: Any) -> None:
    """Removes the choice of a tool where there is none."""
    if request.get("tool_choice") == "required" and not request.get("tools"):
        del request["tool_choice"]


def older_response(response: Any, request: JsonObject) -> None:
    """Repeats the choice of a tool, and names fields as Python does."""
    response["tool_choice"] = request.get("tool_choice") or "auto"
    response["tools"] = [*map(_renamed, response["tools"])]
    response["output"] = [*map(_renamed, response["output"])]


def older_events(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that does the same in a stream."""

    def older(event: Event) -> Iterator[Event]:
        data: Any = event[1]
        if "response" in data:
            older_response(data["response"], request)
        if isinstance(data.get("item"), dict):
            data["item"] = _renamed(data["item"])
        yield event

    return older


def _renamed(item: Any) -> Any:
    """Returns a tool or an item with the field `async_`."""
    if not isinstance(item, dict):
        return item
    renamed = {"async_" if name == "async" else name: value for name, value in item.items()}
    if isinstance(renamed.get("tools"), list):
        renamed["tools"] = [*map(_renamed, renamed["tools"])]
    return renamed


CHANGES = (
    Change(
        area="Responses",
        before="`tool_choice` is `auto` without tools, and `required` is accepted.",
        after="`tool_choice` is `none` without tools, and `required` is an error.",
        forms=(Reading(paths=PATHS, read=accept_required),),
        routes=PATHS,
    ),
    Change(
        area="Responses",
        before="Tools and calls have the field `async_`.",
        after="The field is `async`.",
        forms=(Answer(paths=PATHS, whole=older_response, events=older_events),),
        routes=PATHS,
    ),
)
