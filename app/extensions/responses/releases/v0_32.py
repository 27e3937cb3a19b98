"""Changes of vLLM 0.32 to responses."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import bad_request
from app.core.versions.change import Answer, Change, Event, Reading
from app.core.versions.older_requests import objects_in

PATHS = ("/v1/responses",)
STREAMED = ("/v1/responses", "/v1/responses/{response_id}")
ID_BYTES = 8
CUSTOM_CALLS = ("custom_tool_call", "custom_tool_call_output")


def refuse_custom_calls(request: Any) -> None:
    """Refuses items of custom tools.

    Raises:
        ApiError: 400 for the first item.
    """
    for item in objects_in(request.get("input")):
        if item.get("type") in CUSTOM_CALLS:
            raise bad_request(f"Unsupported input item type: {item['type']}", "input")


def ignore_stop_ids(request: Any) -> None:
    """Removes the tokens that stop a reply."""
    request.pop("stop_token_ids", None)


def with_summary(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds an empty summary to a message that is done."""

    def older(event: Event) -> Iterator[Event]:
        name, data = event
        item = data.get("item")
        if name == "response.output_item.done" and item and item.get("type") == "message":
            item["summary"] = []
        yield event

    return older


def with_stream_ids(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that gives the items of a stream other IDs than the final response has."""

    def older(event: Event) -> Iterator[Event]:
        _, data = event
        item = data.get("item")
        for done in data.get("response", {}).get("output") or ():
            if done.get("type") == "reasoning":
                done["status"] = None
        if item is not None:
            if "call_id" in item:
                item["call_id"] = f"call_{_stream_id(item['call_id'])}"
            item["id"] = _stream_id(item["id"])
        elif "item_id" in data:
            data["item_id"] = _stream_id(data["item_id"])
        yield event

    return older


def _stream_id(item_id: str) -> str:
    return hashlib.blake2b(item_id.encode(), digest_size=ID_BYTES).hexdigest()


CHANGES = (
    Change(
        area="Responses",
        before="The items of a stream have IDs without a prefix, and calls have `call_id` values "
        "that start with `call_`. `response.completed` has other IDs, and its thoughts have no "
        "`status`.",
        after="The items of a stream have the IDs of `response.completed`.",
        forms=(Answer(paths=STREAMED, events=with_stream_ids),),
    ),
    Change(
        area="Responses",
        before="The message of `response.output_item.done` has an empty `summary`.",
        after="The message does not have this field.",
        forms=(Answer(paths=STREAMED, events=with_summary),),
    ),
    Change(
        area="Responses",
        before="Items of the types `custom_tool_call` and `custom_tool_call_output` are rejected.",
        after="These items are accepted.",
        forms=(Reading(paths=PATHS, read=refuse_custom_calls),),
    ),
    Change(
        area="Responses",
        before="`stop_token_ids` is ignored.",
        after="These tokens end the reply.",
        forms=(Reading(paths=PATHS, read=ignore_stop_ids),),
    ),
)
