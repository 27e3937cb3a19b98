"""The chat that a request of the Anthropic family means (vllm-api.md section 7)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from app.clock.pause import Slices
from app.protocol.anthropic import (
    Block,
    CountTokensRequest,
    MessageParam,
    MessagesRequest,
    ToolChoiceParam,
    ToolParam,
)
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.messages import Message
from app.protocol.options import (
    FunctionDefinition,
    JsonSchema,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from app.protocol.slicing import each, is_long, slices

TURN = 10
"""Values that a turn, a block or a tool counts as that becomes part of a chat."""
PIECE = 3
"""Values that a piece of JSON counts as that is written."""
BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a system text that differs from request to request and would spoil the prefix cache."""


def chat_request(asked: MessagesRequest | CountTokensRequest) -> ChatCompletionRequest:
    """`asked` in the words of a chat. ApiError 400 when tools or salt break the rules of a chat."""
    within = slices()
    chat = ChatCompletionRequest(
        model=asked.model,
        messages=_messages(asked.system, asked.messages, within),
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    _take_tools(chat, asked, within)
    if isinstance(asked, MessagesRequest):
        _take_sampling(chat, asked)
        _take_thinking(chat, asked)
        _take_transfer(chat, asked)
    chat.check_rules(within)
    return chat


def _take_tools(
    chat: ChatCompletionRequest, asked: MessagesRequest | CountTokensRequest, within: Slices
) -> None:
    choice = asked.tool_choice
    if choice is not None:
        chat.parallel_tool_calls = not choice.disable_parallel_tool_use
    chat.tools = [_tool(tool) for tool in each(asked.tools or (), within, TURN)] or None
    chat.tool_choice = _tool_choice(choice)
    if chat.tools is None and isinstance(chat.tool_choice, str):
        chat.tool_choice = "none"


def _tool(tool: ToolParam) -> Tool:
    function = FunctionDefinition(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
        defer_loading=tool.defer_loading,
    )
    return Tool(function=function)


def _tool_choice(choice: ToolChoiceParam | None) -> ToolChoice:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "tool":
        return NamedToolChoice(function=NamedFunction(name=choice.name or ""))
    return "required" if choice.type == "any" else "none"


def _take_sampling(chat: ChatCompletionRequest, asked: MessagesRequest) -> None:
    chat.max_tokens = chat.max_completion_tokens = asked.max_tokens
    chat.stop = asked.stop_sequences
    chat.stream = asked.stream
    chat.temperature, chat.top_p, chat.top_k = asked.temperature, asked.top_p, asked.top_k
    form = asked.output_config.format if asked.output_config else None
    if form is not None and form.json_schema:
        schema = JsonSchema(name=form.type, json_schema=form.json_schema)
        chat.response_format = ResponseFormat(type=form.type, json_schema=schema)


def _take_thinking(chat: ChatCompletionRequest, asked: MessagesRequest) -> None:
    """A budget bounds the thoughts, effort "none" keeps them away."""
    if asked.output_config is not None:
        chat.reasoning_effort = asked.output_config.effort
    if asked.thinking is None:
        return
    if asked.thinking.type == "disabled":
        chat.reasoning_effort = "none"
    elif asked.thinking.type == "enabled":
        chat.thinking_token_budget = asked.thinking.budget_tokens


def _take_transfer(chat: ChatCompletionRequest, asked: MessagesRequest) -> None:
    chat.cache_salt = asked.cache_salt
    chat.kv_transfer_params = asked.kv_transfer_params
    chat.ec_transfer_params = asked.ec_transfer_params
    chat.vllm_xargs = asked.vllm_xargs
    chat.priority = asked.priority


def _messages(
    system: str | Sequence[Block] | None, messages: Sequence[MessageParam], within: Slices
) -> list[Message]:
    """The conversation, with one system message of `system` and of the system turns that it begins with.

    System turns further on stay where they are: moved to the front, each would change the whole prompt.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    texts = [system if isinstance(system, str) else _system_text(system or (), within)]
    texts += [_system_text(message.content, within) for message in each(messages[:leading], within, TURN)]
    prompt = "\n\n".join(text for text in texts if text)
    chat: list[Message] = [{"role": "system", "content": prompt}] if prompt else []
    for message in each(messages[leading:], within, TURN):
        chat += _turns(message, within)
    return chat


def _system_text(content: str | Iterable[Block], within: Slices) -> str:
    texts = (content,) if isinstance(content, str) else (block.text or "" for block in each(content, within))
    return "".join(text for text in texts if not text.startswith(BILLING_HEADER))


def _turns(message: MessageParam, within: Slices) -> Iterator[Message]:
    """The chat messages of one turn: the results of tools come before what the user says to them."""
    if message.role == "system":
        if text := _system_text(message.content, within):
            yield {"role": "system", "content": text}
        return
    if isinstance(message.content, str):
        yield {"role": message.role, "content": message.content}
        return
    if message.role == "user":
        for block in each(message.content, within, TURN):
            if block.type == "tool_result":
                yield from _tool_results(block, within)
    said = _said(message.role, message.content, within)
    if message.role == "assistant" or "content" in said:
        yield said


def _said(role: str, blocks: Sequence[Block], within: Slices) -> Message:
    """What is left of a turn without the results of tools; no `content` where nothing is said."""
    parts: list[JsonObject] = []
    thoughts: list[str] = []
    calls: list[JsonObject] = []
    for block in each(blocks, within, TURN):
        if (part := _part(role, block)) is not None:
            parts.append(part)
        elif block.type == "thinking" and block.thinking is not None:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block, within))
    said: Message = {"role": role}
    if thoughts:
        said["reasoning"] = "".join(thoughts)
    if calls:
        said["tool_calls"] = calls
    if parts:
        alone = len(parts) == 1 and parts[0]["type"] == "text"
        said["content"] = parts[0]["text"] if alone else parts
    return said


def _part(role: str, block: Block) -> JsonObject | None:
    if block.type == "text" and block.text:
        return {"type": "text", "text": block.text}
    if block.type == "image" and block.source:
        return _image(block.source)
    if block.type == "tool_result" and role == "assistant":
        return {"type": "text", "text": f"Tool result: {block.content or ''}"}
    return None


def _image(source: JsonObject) -> JsonObject:
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _call(block: Block, within: Slices) -> JsonObject:
    function = {"name": block.name or "", "arguments": _json(block.input or {}, within)}
    return {"id": block.id or "", "type": "function", "function": function}


def _json(value: JsonObject, within: Slices) -> str:
    if not is_long(value):
        return json.dumps(value)
    return "".join(each(json.JSONEncoder().iterencode(value), within, PIECE))


def _tool_results(block: Block, within: Slices) -> Iterator[Message]:
    """A result as a tool's message, its images as the user's, the tools it refers to as a tool's again."""
    texts, images = [block.content] if isinstance(block.content, str) else [], list[JsonObject]()
    references: list[JsonObject] = []
    for item in each(block.content if isinstance(block.content, list) else (), within, TURN):
        source, name = item.get("source"), item.get("tool_name") or item.get("name")
        if item.get("type") == "text":
            texts.append(str(item.get("text", "")))
        elif item.get("type") == "image" and isinstance(source, dict):
            images.append(_image(source))
        elif item.get("type") == "tool_reference" and isinstance(name, str):
            references.append({"type": "tool_reference", "name": name})
    answer: Message = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    yield {**answer, "content": "\n".join(texts)}
    if images:
        yield {"role": "user", "content": images}
    if references:
        yield {**answer, "content": references}
