"""Converts requests of the Responses family to chats (vllm-api.md section 6)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from msgspec import convert

from app.serving.http.errors import bad_request
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.messages import Message
from app.serving.protocol.options import (
    AllowedTools,
    FunctionDefinition,
    JsonSchema,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from app.serving.protocol.response_tools import CUSTOM_INPUT, callable_functions, flat_name
from app.serving.protocol.responses import Content, ContentPart, InputItem, ResponsesRequest

CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")


class ResponsesChat(ChatCompletionRequest, kw_only=True):
    """A chat made from a request of the Responses family."""

    after_results: bool = False
    """True after results of tools: a simulation then replies with text, but a script may call tools again."""


def chat_request(asked: ResponsesRequest) -> ResponsesChat:
    """Converts `asked` to a chat. ApiError 400 when the chat breaks a rule."""
    chat = ResponsesChat(
        model=asked.model,
        messages=_messages(asked.instructions, asked.input),
        chat_template_kwargs=asked.chat_template_kwargs,
        request_id=asked.request_id,
    )
    if isinstance(asked.input, list) and asked.input and asked.input[-1].is_partial:
        chat.continue_final_message, chat.add_generation_prompt = True, False
    _take_tools(chat, asked)
    _take_sampling(chat, asked)
    _take_form(chat, asked)
    _take_transfer(chat, asked)
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


def _messages(instructions: str | None, asked: str | Sequence[InputItem]) -> list[Message]:
    system: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(asked, str):
        return [*system, {"role": "user", "content": asked}]
    return [*system, *_turns(asked)]


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
    return content if isinstance(content, str) else "\n".join(map(_echoed, content or ()))


def _echoed(part: ContentPart) -> str:
    return f"image: {part.image_url}" if part.type == "input_image" else part.said or ""


def _turns(items: Iterable[InputItem]) -> list[Message]:
    """Returns the messages of `items`; consecutive items of the assistant become one message."""
    messages: list[Message] = []
    for item in items:
        turn = _turn(item)
        last = messages[-1] if messages else None
        if last is not None and turn["role"] == last["role"] == "assistant" and _fits(turn, last):
            calls = last.get("tool_calls")
            more = turn.pop("tool_calls", None)
            last |= turn
            if isinstance(calls, list) and isinstance(more, list):
                calls += more
            elif more is not None:
                last["tool_calls"] = more
        else:
            messages.append(turn)
    return messages


def _fits(turn: Message, last: Message) -> bool:
    """True if `turn` can join `last`: calls always, reasoning and text only when `last` has none."""
    return not any(key in last for key in ("content", "reasoning") if key in turn)


def _turn(item: InputItem) -> Message:
    if item.kind in CALLS:
        return {"role": "assistant", "tool_calls": [_call(item)]}
    if item.kind in RESULTS:
        return {"role": "tool", "tool_call_id": item.call_id or "", "content": _content(item.output)}
    if item.kind == "reasoning":
        if item.encrypted_content:
            raise bad_request("encrypted reasoning cannot be read here", "input")
        return {"role": "assistant", "reasoning": _first_text(item.content or item.summary)}
    if item.role == "assistant":
        return {"role": item.role, "content": _first_text(item.content)}
    return {"role": item.role, "content": _content(item.content)}


def _call(item: InputItem) -> JsonObject:
    name, arguments = item.name or "", item.arguments
    if item.kind == "custom_tool_call":
        arguments = json.dumps({CUSTOM_INPUT: item.payload}, ensure_ascii=False)
    elif item.namespace:
        name = flat_name(item.namespace, name)
    return {"id": item.call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _first_text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    return (content[0].said or "") if content else ""


def _content(content: Content | None) -> str | list[JsonObject]:
    return content if isinstance(content, str) else [_part(part) for part in content or ()]


def _part(part: ContentPart) -> JsonObject:
    if part.type == "input_image":
        return {"type": "image_url", "image_url": {"url": part.image_url}}
    if part.type == "input_file":
        raise bad_request(f"Unsupported chat content part type: {part.type!r}.", "type")
    return {"type": "text", "text": part.said}


def _take_tools(chat: ResponsesChat, asked: ResponsesRequest) -> None:
    """Sets tools and tool choice: at most one call; ``auto`` becomes ``required`` (simulator.md 7.1)."""
    chat.parallel_tool_calls = False
    chat.tools = [Tool(function=function) for function in callable_functions(asked.tools)] or None
    if (
        asked.tools
        and chat.tools is None
        and (asked.tool_choice == "required" or _is_named(asked.tool_choice))
    ):
        raise bad_request("tool_choice asks for a call, and no tool can be called", "tool_choice")
    chat.tool_choice = "none" if chat.tools is None else _tool_choice(asked.tool_choice)
    _answer_results(chat)


def _answer_results(chat: ResponsesChat) -> None:
    """Forces no call after the result of a function, or an agent would never end."""
    if any(message["role"] == "tool" for message in chat.messages):
        chat.after_results = True
        if chat.tool_choice != "none":
            chat.tool_choice = "auto"


def _tool_choice(choice: str | JsonObject) -> ToolChoice:
    if isinstance(choice, str):
        return "none" if choice == "none" else "required"
    if _is_named(choice):
        return NamedToolChoice(function=convert(choice, NamedFunction))
    if choice["type"] != "allowed_tools":
        return "auto"
    allowed = cast(list[JsonObject], choice["tools"])
    names = [name for tool in allowed if isinstance(name := tool.get("name"), str)]
    if not names:
        return "none"
    tools = [Tool(function=FunctionDefinition(name=name)) for name in names]
    mode = cast(Literal["auto", "required"], choice["mode"])
    return NamedToolChoice(type="allowed_tools", allowed_tools=AllowedTools(mode=mode, tools=tools))


def _is_named(choice: str | JsonObject) -> bool:
    return isinstance(choice, dict) and choice["type"] in ("function", "custom")


def _take_sampling(chat: ChatCompletionRequest, asked: ResponsesRequest) -> None:
    chat.stream = asked.stream
    chat.max_completion_tokens = asked.max_output_tokens
    chat.temperature, chat.top_p, chat.seed = asked.temperature, asked.top_p, asked.seed
    chat.top_k, chat.min_p, chat.logit_bias = asked.top_k, asked.min_p, asked.logit_bias
    chat.presence_penalty, chat.frequency_penalty = asked.presence_penalty, asked.frequency_penalty
    chat.repetition_penalty = asked.repetition_penalty
    chat.stop, chat.stop_token_ids, chat.ignore_eos = asked.stop or [], asked.stop_token_ids, asked.ignore_eos
    chat.skip_special_tokens = asked.skip_special_tokens
    chat.include_stop_str_in_output = asked.include_stop_str_in_output
    chat.include_reasoning = asked.include_reasoning
    if asked.reasoning is not None:
        chat.reasoning_effort = asked.reasoning.effort
    if asked.logprobs is not None:
        if asked.logprobs < -1:
            raise bad_request("logprobs must be 0 or more, or -1", "logprobs")
        chat.logprobs, chat.top_logprobs = True, asked.logprobs


def _take_form(chat: ChatCompletionRequest, asked: ResponsesRequest) -> None:
    chat.structured_outputs = asked.structured_outputs
    form = asked.text.format if asked.text else None
    if form is None:
        return
    if asked.structured_outputs is not None:
        raise bad_request("structured_outputs and text.format exclude each other", "structured_outputs")
    schema = None
    if form.type == "json_schema":
        schema = JsonSchema(name=form.name or "", json_schema=form.json_schema)
    chat.response_format = ResponseFormat(type=form.type, json_schema=schema)


def _take_transfer(chat: ChatCompletionRequest, asked: ResponsesRequest) -> None:
    chat.user, chat.session_id = asked.user, asked.session_id
    chat.cache_salt = asked.cache_salt
    chat.kv_transfer_params = asked.kv_transfer_params
    chat.ec_transfer_params = asked.ec_transfer_params
    chat.vllm_xargs = asked.vllm_xargs
    chat.priority = asked.priority
    chat.media_io_kwargs = asked.media_io_kwargs
    chat.mm_processor_kwargs = asked.mm_processor_kwargs
