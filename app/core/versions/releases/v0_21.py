"""Changes of vLLM 0.21 to chats and completions."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request, invalid_field, not_implemented
from app.core.versions.change import Answer, Change, Event, Reading
from app.core.versions.older_requests import objects_in
from app.core.versions.paths import CHATS, COMPLETIONS, GENERATING, INVOCATIONS

UNSUPPORTED_PART = re.compile(r"Unsupported chat content part type: '([^']*)'")
NEW_EFFORTS = ("minimal", "xhigh", "max")
EFFORTS = "'none', 'low', 'medium' or 'high'"
NEW_PART = "tool_reference"


def without_fingerprint(answer: Any, request: JsonObject) -> None:
    """Replaces the fingerprint by null."""
    if "system_fingerprint" in answer:
        answer["system_fingerprint"] = None


def with_usage(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds the fields of completion chunks that are null."""

    def older(event: Event) -> Iterator[Event]:
        data: Any = event[1]
        if data.get("object") == "text_completion" and data.get("choices"):
            usage = data.setdefault("usage", None)
            if usage is not None:
                usage.setdefault("prompt_tokens_details", None)
        yield event

    return older


def with_last_delta(request: JsonObject) -> Callable[[Event], Iterator[Event]]:
    """Returns a function that adds the empty text, or arguments, of the last chunk."""
    has_tools = bool(request.get("tools"))
    is_named = isinstance(request.get("tool_choice"), dict)

    def older(event: Event) -> Iterator[Event]:
        choices: Any = event[1].get("choices") or ()
        for choice in choices:
            if choice.get("delta") == {} and choice["finish_reason"] is not None:
                if is_named:
                    call = {"index": 0, "function": {"arguments": ""}}
                    choice["delta"] = {"tool_calls": [call]}
                elif not has_tools:
                    choice["delta"] = {"content": ""}
        yield event

    return older


def refuse_references(request: Any) -> None:
    """Refuses references to tools in messages.

    Raises:
        ApiError: 400.
    """
    for message in objects_in(request.get("messages")):
        for part in objects_in(message.get("content")):
            if part.get("type") == NEW_PART:
                raise bad_request("validation errors for ValidatorIterator: no type of a part")


def refuse_new_efforts(request: Any) -> None:
    """Refuses the efforts of thinking that older versions do not know.

    Raises:
        ApiError: 400.
    """
    effort = request.get("reasoning_effort")
    if isinstance(effort, str) and effort in NEW_EFFORTS:
        problem = f"Input should be {EFFORTS}"
        path = "body.reasoning_effort"
        raise invalid_field("literal_error", path, problem, effort, {"expected": EFFORTS})


def fail_as_unknown(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a part of an unknown type."""
    match = UNSUPPORTED_PART.match(error.message)
    if match is None:
        return None
    return not_implemented(f"Unknown part type: {match[1]}")


CHANGES = (
    Change(
        area="Chat and completions",
        before="`reasoning_effort` is `none`, `low`, `medium` or `high`.",
        after="`reasoning_effort` may also be `minimal`, `xhigh` or `max`.",
        forms=(Reading(paths=(*CHATS, INVOCATIONS), read=refuse_new_efforts),),
    ),
    Change(
        area="Chat and completions",
        before="`system_fingerprint` is null.",
        after="`system_fingerprint` is a text, such as `vllm-0.21.0-3104eb35`.",
        forms=(Answer(paths=GENERATING, whole=without_fingerprint),),
    ),
    Change(
        area="Chat and completions",
        before="The chunks of a completion have `usage: null`.",
        after="The chunks have no `usage`, unless `continuous_usage_stats` asks for it.",
        forms=(Answer(paths=COMPLETIONS, events=with_usage),),
    ),
    Change(
        area="Chat and completions",
        before="The delta of a last chunk without text has empty `content`.",
        after="The delta is empty.",
        forms=(Answer(paths=CHATS, events=with_last_delta),),
    ),
    Change(
        area="Chat and completions",
        before="A part of a message with an unknown type fails with 501. `tool_reference` is not "
        "known.",
        after="An unknown type fails with 400.",
        forms=(
            Reading(paths=(*CHATS, INVOCATIONS), read=refuse_references),
            Answer(paths=CHATS, failure=fail_as_unknown),
        ),
    ),
)
