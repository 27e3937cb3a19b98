"""Converts requests of the Responses family to chats (vllm-api.md section 6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from msgspec import convert

from app.serving.http.errors import bad_request
from app.serving.protocol import options
from app.serving.protocol.chat import ChatCompletionRequest, Message
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.response_tools import CUSTOM_INPUT, callable_functions, flat_name
from app.serving.protocol.responses import Content, InputItem, ResponsesRequest

CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
SAME = (
    *options.SamplingFields.__struct_fields__,
    *("chat_template_kwargs", "include_reasoning", "media_io_kwargs", "mm_processor_kwargs"),
)


class ResponsesChat(ChatCompletionRequest, kw_only=True):
    after_results: bool = False
    """True after results of tools: a simulation then replies with text, but a script may call tools again."""


def chat_request(asked: ResponsesRequest) -> ResponsesChat:
    """Converts `asked` to a chat. ApiError 400 when the chat breaks a rule."""
    items = [InputItem(role="user", content=asked.input)] if isinstance(asked.input, str) else asked.input
    system: list[Message] = [{"role": "system", "content": asked.instructions}] if asked.instructions else []
    last = items[-1] if items else None
    partial = last and last.kind in ("message", "reasoning") and last.status in ("in_progress", "incomplete")
    chat = ResponsesChat(
        messages=[*system, *_turns(items)],
        continue_final_message=bool(partial),
        add_generation_prompt=not partial,
        max_completion_tokens=asked.max_output_tokens,
        reasoning_effort=asked.reasoning.effort if asked.reasoning else None,
        parallel_tool_calls=False,
        **{name: getattr(asked, name) for name in SAME},
    )
    _take_tools(chat, asked)
    if asked.logprobs is not None:
        if asked.logprobs < -1:
            raise bad_request("logprobs must be 0 or more, or -1", "logprobs")
        chat.logprobs, chat.top_logprobs = True, asked.logprobs
    form = asked.text.format if asked.text else None
    if form is not None:
        if asked.structured_outputs is not None:
            raise bad_request("structured_outputs and text.format exclude each other", "structured_outputs")
        schema = None
        if form.type == "json_schema":
            schema = options.JsonSchema(name=form.name or "", json_schema=form.json_schema)
        chat.response_format = options.ResponseFormat(type=form.type, json_schema=schema)
    chat.check_rules()
    return chat


def go_on(chat: ResponsesChat, before: Sequence[Message], output: Sequence[JsonObject]) -> None:
    """Prepends an earlier exchange to `chat`: messages `before`, and the response's items `output`.

    Earlier instructions and reasoning are dropped.
    """
    leading = 1 if chat.messages[:1] and chat.messages[0]["role"] == "system" else 0
    said = [convert(item, InputItem) for item in output if item["type"] != "reasoning"]
    earlier = [message for message in before if message["role"] != "system"]
    chat.messages[leading:leading] = [*earlier, *_turns(said)]
    _answer_results(chat)


def echo_text(asked: str | Sequence[InputItem]) -> str:
    """Returns the reply of mode `echo`: the text of the last item (simulator.md 5.2)."""
    if isinstance(asked, str):
        return asked
    if not asked:
        return ""
    last = asked[-1]
    if last.kind in CALLS:
        return f"{last.name}({last.arguments or last.payload})"
    content = last.output if last.kind in RESULTS else last.content or last.summary
    if isinstance(content, str):
        return content
    parts = content or ()
    return "\n".join(
        f"image: {part.image_url}" if part.type == "input_image" else part.said or "" for part in parts
    )


def _turns(items: Iterable[InputItem]) -> list[Message]:
    """Returns the messages of `items`; consecutive items of the assistant become one message."""
    messages: list[Message] = []
    for item in items:
        turn = _turn(item)
        last = messages[-1] if messages else None
        # Calls always join the last message; reasoning and text only one that has none.
        joins = last is not None and not any(key in last for key in ("content", "reasoning") if key in turn)
        if last is not None and joins and turn["role"] == last["role"] == "assistant":
            calls = [*cast(list[JsonObject], turn.pop("tool_calls", []))]
            last |= turn
            if calls:
                last["tool_calls"] = [*cast(list[JsonObject], last.get("tool_calls", [])), *calls]
        else:
            messages.append(turn)
    return messages


def _turn(item: InputItem) -> Message:
    if item.kind in CALLS:
        name, arguments = item.name or "", item.arguments
        if item.kind == "custom_tool_call":
            arguments = json.dumps({CUSTOM_INPUT: item.payload}, ensure_ascii=False)
        elif item.namespace:
            name = flat_name(item.namespace, name)
        function = {"name": name, "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if item.kind in RESULTS:
        return {"role": "tool", "tool_call_id": item.call_id or "", "content": _content(item.output)}
    if item.kind == "reasoning":
        if item.encrypted_content:
            raise bad_request("encrypted reasoning cannot be read here", "input")
        return {"role": "assistant", "reasoning": _first_text(item.content or item.summary)}
    if item.role == "assistant":
        return {"role": item.role, "content": _first_text(item.content)}
    return {"role": item.role, "content": _content(item.content)}


def _first_text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    return (content[0].said or "") if content else ""


def _content(content: Content | None) -> str | list[JsonObject]:
    if isinstance(content, str):
        return content
    parts: list[JsonObject] = []
    for part in content or ():
        if part.type == "input_file":
            raise bad_request(f"Unsupported chat content part type: {part.type!r}.", "type")
        if part.type == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.image_url}})
        else:
            parts.append({"type": "text", "text": part.said})
    return parts


def _take_tools(chat: ResponsesChat, asked: ResponsesRequest) -> None:
    """Sets tools and tool choice; ``auto`` becomes ``required`` (simulator.md 7.1)."""
    chat.tools = [options.Tool(function=function) for function, _ in callable_functions(asked.tools)] or None
    must_call = asked.tool_choice == "required" or _is_named(asked.tool_choice)
    if asked.tools and chat.tools is None and must_call:
        raise bad_request("tool_choice asks for a call, and no tool can be called", "tool_choice")
    chat.tool_choice = "none" if chat.tools is None else _tool_choice(asked.tool_choice)
    _answer_results(chat)


def _answer_results(chat: ResponsesChat) -> None:
    """Forces no call after the result of a function, or an agent would never end."""
    if any(message["role"] == "tool" for message in chat.messages):
        chat.after_results = True
        if chat.tool_choice != "none":
            chat.tool_choice = "auto"


def _tool_choice(choice: str | JsonObject) -> options.ToolChoice:
    if isinstance(choice, str):
        return "none" if choice == "none" else "required"
    if _is_named(choice):
        return options.NamedToolChoice(function=convert(choice, options.NamedFunction))
    if choice["type"] != "allowed_tools":
        return "auto"
    allowed = cast(list[JsonObject], choice["tools"])
    names = [name for tool in allowed if isinstance(name := tool.get("name"), str)]
    if not names:
        return "none"
    tools = [options.Tool(function=options.FunctionDefinition(name=name)) for name in names]
    mode = cast(Literal["auto", "required"], choice["mode"])
    return options.NamedToolChoice(
        type="allowed_tools", allowed_tools=options.AllowedTools(mode=mode, tools=tools)
    )


def _is_named(choice: str | JsonObject) -> bool:
    return isinstance(choice, dict) and choice["type"] in ("function", "custom")
