"""The messages of a call in an export of OpenTelemetry, in the form of OpenAI's chats.

There are three ways to write them: a list of messages with parts, numbered attributes, and events.
Each function returns the messages of a request, or of a reply.
"""

import re
from collections.abc import Iterable, Iterator

from workbench.imports.imported_script import Json
from workbench.imports.otlp_calls import Call
from workbench.imports.records import as_json, text_of

NUMBERED = re.compile(r"(\d{1,6})\.(role|content|finish_reason|tool_call_id|reasoning)")
NUMBERED_CALL = re.compile(r"(\d{1,6})\.tool_calls\.(\d{1,6})\.(id|name|arguments)")
MESSAGE_EVENT = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
CHOICE_EVENT = "gen_ai.choice"
RESULT_KEYS = ("response", "result", "content")
"""Fields of a tool's result, in the versions of the convention."""


def part_messages(value: object) -> list[Json]:
    """Returns the messages of `gen_ai.input.messages` or `gen_ai.output.messages`.

    Raises:
        one of INVALID: they have another form.
    """
    messages: list[Json] = []
    value = as_json(value)
    if isinstance(value, dict):
        value = [value]
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    for message in value if isinstance(value, list) else ():
        if isinstance(message.get("message"), dict):  # a choice of a chat
            message = {**message["message"], "finish_reason": message.get("finish_reason")}
        if isinstance(message.get("parts"), list):
            messages += _messages_of_parts(message)
        else:
            messages.append(dict(message))
    return messages


def _messages_of_parts(message: Json) -> Iterator[Json]:
    """Yields the results of tools in a message as messages, and then the other parts."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    others: list[Json] = []
    has_result = False
    for part in message["parts"]:
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("content") or part.get("text") or ""))
        elif kind == "reasoning":
            thoughts.append(str(part.get("content") or ""))
        elif kind == "tool_call":
            calls.append(_call(part))
        elif kind == "tool_call_response":
            has_result = True
            result = next((part[key] for key in RESULT_KEYS if key in part), "")
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": text_of(result)}
        else:
            others.append({"type": kind})
    if has_result and not (texts or calls or others):
        return
    content: object = "".join(texts)
    if others:
        content = [{"type": "text", "text": content}, *others]
    whole: Json = {"role": message.get("role"), "content": content}
    if thoughts:
        whole["reasoning"] = "".join(thoughts)
    if calls:
        whole["tool_calls"] = calls
    yield {**whole, "finish_reason": message.get("finish_reason")}


def numbered_messages(attributes: Json, prefix: str) -> list[Json]:
    """Returns the messages of attributes such as `gen_ai.prompt.0.role`; `prefix` ends in a dot."""
    messages: dict[int, Json] = {}
    calls: dict[int, dict[int, Json]] = {}
    for name, value in attributes.items():
        if not name.startswith(prefix):
            continue
        key = name[len(prefix) :]
        field = NUMBERED.fullmatch(key)
        if field is not None:
            messages.setdefault(int(field[1]), {})[field[2]] = value
        call_field = NUMBERED_CALL.fullmatch(key)
        if call_field is not None:
            number = int(call_field[1])
            messages.setdefault(number, {})
            message_calls = calls.setdefault(number, {})
            message_calls.setdefault(int(call_field[2]), {})[call_field[3]] = value
    for number, message in messages.items():
        if isinstance(message.get("content"), str):
            message["content"] = _content(message["content"])
        if number in calls:
            ordered = sorted(calls[number].items())
            message["tool_calls"] = [_call(call) for _, call in ordered]
    return [message for _, message in sorted(messages.items())]


def event_messages(events: Iterable[tuple[str, Json]], *, is_reply: bool) -> list[Json]:
    """Returns the messages of events such as `gen_ai.user.message`, or of `gen_ai.choice`."""
    messages: list[Json] = []
    for name, attributes in events:
        if name == CHOICE_EVENT and is_reply:
            message = as_json(attributes.get("message"))
            if not isinstance(message, dict):
                message = {"content": attributes.get("content", message)}
            message = {**message, "finish_reason": attributes.get("finish_reason")}
            messages.append(message)
        kind = MESSAGE_EVENT.fullmatch(name)
        if kind is not None and not is_reply:
            message = {"role": attributes.get("role") or kind[1], **attributes}
            if kind[1] == "tool":
                message["tool_call_id"] = attributes.get("id")
            messages.append(message)
    for message in messages:
        calls = as_json(message.get("tool_calls"))
        if isinstance(calls, list):
            message["tool_calls"] = [_call(call.get("function") or call, call) for call in calls]
    return messages


def _call(call: Json, outer: Json | None = None) -> Json:
    """Returns a tool call; `outer` has its ID if `call` has none."""
    call_id = call.get("id") or (outer or call).get("id")
    arguments = call.get("arguments")
    if arguments is None:
        arguments = {}
    return {"id": call_id, "function": {"name": call.get("name"), "arguments": text_of(arguments)}}


def _content(text: str) -> object:
    """Returns the parts of a content that is written as JSON; other texts unchanged."""
    if not text.startswith('[{"'):
        return text
    parts = as_json(text)
    if isinstance(parts, list) and all(isinstance(part, dict) and "type" in part for part in parts):
        return parts
    return text


def sent_messages(call: Call) -> list[Json]:
    """Returns the messages of the request; none if they were not captured.

    Raises:
        one of INVALID: they have another form.
    """
    system = call.value("gen_ai.system_instructions")
    value = call.value("gen_ai.input.messages", "gen_ai.prompt")
    if value is not None:
        instructions = part_messages({"role": "system", "parts": as_json(system)}) if system else []
        return [*instructions, *part_messages(value)]
    return numbered_messages(call.attributes, "gen_ai.prompt.") or event_messages(
        call.events, is_reply=False
    )


def reply_messages(call: Call) -> list[Json]:
    """Returns the messages of the reply; none if they were not captured.

    Raises:
        one of INVALID: they have another form.
    """
    value = call.value("gen_ai.output.messages", "gen_ai.completion")
    if value is not None:
        return part_messages(value)
    return numbered_messages(call.attributes, "gen_ai.completion.") or event_messages(
        call.events, is_reply=True
    )
