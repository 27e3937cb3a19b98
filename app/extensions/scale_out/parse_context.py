"""Fields of a chat that a server needs to parse its reply, as `parse_context` shows them."""

from collections.abc import Sequence

import msgspec
from msgspec import UnsetType

from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import NamedToolChoice, Tool, ToolChoice
from app.core.server.http.errors import bad_request
from app.extensions.scale_out.protocol import ParseContext


def parse_context_of(chat: ChatCompletionRequest, template_kwargs: JsonObject) -> JsonObject:
    """Returns the context of a rendered chat; `template_kwargs` has all template variables."""
    tools = None
    if chat.tools is not None:
        tools = [shown_tool(tool) for tool in chat.tools]
    return {
        "tools": tools,
        "tool_choice": shown_choice(chat.tool_choice),
        "parallel_tool_calls": chat.parallel_tool_calls,
        "include_reasoning": chat.include_reasoning,
        "chat_template_kwargs": template_kwargs,
        "history_tool_call_cnt": count_calls(chat.messages),
    }


def shown_tool(tool: Tool) -> JsonObject:
    """Returns a tool as vLLM dumps it: `strict` and `defer_loading` only if they are set."""
    function: JsonObject = msgspec.to_builtins(tool.function)
    if tool.function.defer_loading is None:
        function["defer_loading"] = tool.defer_loading
    for name in ("strict", "defer_loading"):
        if function[name] is None:
            del function[name]
    shown: JsonObject = {"type": tool.type, "function": function}
    if tool.defer_loading is not None:
        shown["defer_loading"] = tool.defer_loading
    return shown


def shown_choice(choice: ToolChoice | UnsetType) -> object:
    """Returns a tool choice as vLLM dumps it."""
    if not isinstance(choice, NamedToolChoice):
        return choice
    if choice.function is not None:
        return {"function": {"name": choice.function.name}, "type": "function"}
    if choice.allowed_tools is not None:
        return choice.allowed_tools.mode
    return "auto"


def count_calls(messages: Sequence[Message]) -> int:
    """Returns the number of tool calls in the messages of the assistant."""
    count = 0
    for message in messages:
        calls = message.get("tool_calls")
        if message["role"] == "assistant" and isinstance(calls, list):
            count += len(calls)
    return count


def chat_of(context: ParseContext) -> ChatCompletionRequest:
    """Returns the chat of a context, without messages.

    Raises:
        ApiError: 400 for the choice of a tool that is not among the tools.
    """
    choice = context.tool_choice
    tools = context.tools or ()
    if isinstance(choice, NamedToolChoice):
        tool_names = {tool.function.name for tool in tools}
        if not tool_names.issuperset(choice.names()):
            raise bad_request(
                "The tool in `tool_choice` does not match any of the specified `tools`",
                "tool_choice",
            )
    return ChatCompletionRequest(
        messages=[],
        tools=context.tools,
        tool_choice=choice,
        parallel_tool_calls=context.parallel_tool_calls,
        include_reasoning=context.include_reasoning,
        chat_template_kwargs=context.chat_template_kwargs,
    )
