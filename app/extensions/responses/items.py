"""Items of a response: messages, thoughts and tool calls."""

from collections.abc import Mapping

from msgspec import Raw

from app.core.api.choice_state import Segment
from app.core.protocol.coercion import JsonObject
from app.extensions.responses.tools import CalledTool, custom_input

CUSTOM_CALL = "custom_tool_call"

Logprobs = tuple[()] | Raw | None

Calls = Mapping[str, CalledTool]
"""Tools as the answer names them, by the function name that the model uses."""


def item_of(
    segment: Segment,
    *,
    status: str | None,
    text: str | Raw | None,
    logprobs: Logprobs,
    calls: Calls,
) -> JsonObject:
    """Returns the item of a segment of the reply; `text` is None while it is in progress."""
    if segment.part is None:
        content = []
        if text is not None and segment.text:
            content.append(content_of(segment, text, logprobs))
        return {
            "id": "msg_" + segment.id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }
    if segment.kind == "reasoning":
        return {
            "id": "rs_" + segment.id,
            "summary": (),
            "type": "reasoning",
            "content": None if text is None else [content_of(segment, text, None)],
            "encrypted_content": None,
            "status": status,
        }
    called = calls.get(segment.part.name, CalledTool(segment.part.name))
    call_id = segment.part.id or f"chatcmpl-tool-{segment.id}"
    if called.is_custom:
        tool_input = ""
        if text is not None:
            tool_input = custom_input(segment.text)
        return {
            "call_id": call_id,
            "input": tool_input,
            "name": called.name,
            "type": CUSTOM_CALL,
            "id": "ctc_" + segment.id,
            "async": None,
            "caller": None,
            "namespace": None,
        }
    return {
        "arguments": "" if text is None else text,
        "call_id": call_id,
        "name": called.name,
        "type": "function_call",
        "id": "fc_" + segment.id,
        "async": None,
        "caller": None,
        "namespace": called.namespace,
        "status": status,
    }


def content_of(segment: Segment, text: str | Raw, logprobs: Logprobs) -> JsonObject:
    """Returns the content part of a message or of thoughts."""
    if segment.part is not None:
        return {"text": text, "type": "reasoning_text"}
    return {"annotations": (), "text": text, "type": "output_text", "logprobs": logprobs}
