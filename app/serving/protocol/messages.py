"""The messages of a chat: vLLM's checks, and the error paths of refused messages.

A message stays the client's dict, because chat templates may read any key. Accepted messages are one of
OpenAI's six kinds, or have any other role with text or parts. A message of no kind is reported as a wrong
developer message, the first kind that vLLM tries.
"""

from __future__ import annotations

from app.serving.http.errors import bad_request, malformed
from app.serving.protocol.coercion import JsonObject, Misfit, param_of

Message = JsonObject

_FIRST_KIND = "ChatCompletionDeveloperMessageParam"
_TOOL_CALL = "ChatCompletionMessageFunctionToolCallParam"
_PLAIN_KEYS = frozenset(("role", "content"))


def convert_messages(value: object) -> list[Message]:
    if not isinstance(value, list):
        raise Misfit("a list of messages")
    for index, message in enumerate(value):
        try:
            _check_message(message)
        except Misfit as misfit:
            raise misfit.under(index) from None
    return value


def normalize_messages(messages: object) -> None:
    """Renames ``reasoning_content`` to ``reasoning``, and makes tool calls a list; in place."""
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        calls = message.get("tool_calls")
        if calls is not None and not isinstance(calls, list):
            if not isinstance(calls, str | dict):
                raise bad_request("tool_calls of a message must be a list")
            message["tool_calls"] = list(calls)
        reasoning = message.pop("reasoning_content", None)
        if reasoning is not None and message.get("reasoning") is None:
            message["reasoning"] = reasoning


def check_tool_calls(message: Message) -> None:
    """Raises `ApiError` unless an assistant's calls have an id, a type and a function or custom tool."""
    calls = message.get("tool_calls") if message.get("role") == "assistant" else None
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if not _is_custom_call(call) and (path := _wrong_function_call(call)):
            where = param_of((index, *path))
            raise malformed(f"{where}: a tool call of a message is incomplete", where)


def _check_message(message: object) -> None:
    if not isinstance(message, dict):
        raise Misfit("a message object", _FIRST_KIND)
    is_plain = message.keys() == _PLAIN_KEYS and type(message["role"]) is type(message["content"]) is str
    if is_plain or _is_known_kind(message) or _is_custom_kind(message):
        return
    if not _is_content(message.get("content")):
        raise Misfit("a text or a list of parts", _FIRST_KIND, "content")
    if message.get("role") != "developer":
        raise Misfit("the name of a role", _FIRST_KIND, "role")
    raise Misfit("a string", _FIRST_KIND, "name")


def _is_content(content: object) -> bool:
    # Parts are checked when the conversation is rendered; here any iterable passes.
    return isinstance(content, str | list | dict)


def _is_known_kind(message: Message) -> bool:
    role, content = message.get("role"), message.get("content")
    if role == "tool":
        return _is_content(content) and _has(message, "tool_call_id")
    if role == "function":
        return "content" in message and isinstance(content, str | None) and _has(message, "name")
    if not isinstance(message.get("name", ""), str):
        return False
    audio, call = message.get("audio"), message.get("function_call")
    if role == "assistant":
        return (
            (content is None or _is_content(content))
            and isinstance(message.get("refusal"), str | None)
            and (audio is None or _has(audio, "id"))
            and (call is None or _has(call, "arguments", "name"))
            and isinstance(message.get("tool_calls", []), list)
        )
    return role in ("developer", "system", "user") and _is_content(content)


def _is_custom_kind(message: Message) -> bool:
    content = message.get("content", "")
    calls, tools = message.get("tool_calls"), message.get("tools")
    return (
        isinstance(message.get("role"), str)
        and (
            isinstance(content, str)
            or isinstance(content, list)
            and all(isinstance(part, str | dict) for part in content)
        )
        and isinstance(message.get("name", ""), str)
        and all(isinstance(message.get(key), str | None) for key in ("tool_call_id", "reasoning", "task"))
        and (calls is None or isinstance(calls, list) and not any(map(_wrong_function_call, calls)))
        and (tools is None or isinstance(tools, list) and all(map(_is_tool, tools)))
    )


def _has(value: object, *keys: str) -> bool:
    return isinstance(value, dict) and all([isinstance(value.get(key), str) for key in keys])


def _is_custom_call(call: object) -> bool:
    is_custom = _has(call, "id") and isinstance(call, dict) and call.get("type") == "custom"
    return is_custom and isinstance(call, dict) and _has(call.get("custom"), "input", "name")


def _is_tool(tool: object) -> bool:
    is_function = isinstance(tool, dict) and tool.get("type") == "function"
    return is_function and isinstance(tool, dict) and _has(tool.get("function"), "name")


def _wrong_function_call(call: object) -> tuple[str, ...]:
    """Returns the path to a function call's error, with the kind's name in front; empty without an error."""
    if not isinstance(call, dict):
        return (_TOOL_CALL,)
    function = call.get("function")
    if not _has(call, "id"):
        return (_TOOL_CALL, "id")
    if not isinstance(function, dict):
        return (_TOOL_CALL, "function")
    if not _has(function, "arguments"):
        return (_TOOL_CALL, "function")  # vLLM leaves the step "arguments" out
    if not _has(function, "name"):
        return (_TOOL_CALL, "function", "name")
    return () if call.get("type") == "function" else (_TOOL_CALL, "type")


def content_text(content: object) -> str:
    """Joins text parts and images (as `image: URL`) by line breaks; other parts are skipped."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | dict):
        return ""
    texts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(part, dict) and part.get("type") == "image_url":
            image = part.get("image_url")
            text = f"image: {image.get('url') if isinstance(image, dict) else image}"
        if isinstance(text, str):
            texts.append(text)
    return "\n".join(texts)
