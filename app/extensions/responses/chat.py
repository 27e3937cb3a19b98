"""Conversion of a body of ``POST /v1/responses`` to a chat. Start reading at `chat_request`."""

import json
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Literal, cast

import msgspec
from msgspec.structs import astuple

from app.core.base.clock.pause import Slices, paced
from app.core.protocol import options
from app.core.protocol.chat import ChatCompletionRequest, Message
from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import bad_request
from app.extensions.responses import tools as response_tools
from app.extensions.responses.protocol import ResponsesRequest, TextFormat
from app.extensions.responses.protocol_items import Content, InputItem

CALLS = ("function_call", "custom_tool_call")
RESULTS = ("function_call_output", "custom_tool_call_output")
SHARED_FIELDS = (
    *(name for name in options.SamplingFields.__struct_fields__ if name != "model"),
    "chat_template_kwargs",
    "include_reasoning",
    "media_io_kwargs",
    "mm_processor_kwargs",
)
"""Fields besides the model that a chat takes over unchanged; most requests set none."""
SHARED_DEFAULTS = attrgetter(*SHARED_FIELDS)(ChatCompletionRequest(messages=[]))
"""Values of these fields in a chat without options."""
_shared_of_request = itemgetter(*map(ResponsesRequest.__struct_fields__.index, SHARED_FIELDS))
"""Returns the values of these fields; its argument has the values of all fields of a request."""
TURNS = ("user", "tool")
"""Roles of the messages that a reply answers."""
HAS_HIDDEN_CALLS = "has_hidden_calls"
"""Key of a message whose calls are not in the prompt."""


class ResponsesChat(ChatCompletionRequest, kw_only=True):
    """The chat of a response."""

    after_results: bool = False  # type: ignore[misc]  # a field only here
    """True after results of tools.

    A simulation then replies with text, but a script may call tools again.
    """
    draws_call: bool = False  # type: ignore[misc]  # a field only here
    keeps_all_calls: bool = False  # type: ignore[misc]  # a field only here


def chat_request(request: ResponsesRequest) -> ResponsesChat:
    """Converts `request` to a chat.

    Raises:
        ApiError: Status 400 when the chat breaks a rule.
    """
    items = request.input
    continues = False
    messages: list[Message]
    if isinstance(items, str):
        messages = [{"role": "user", "content": items}]
    else:
        messages = _messages(items, request.joins_items)
        continues = bool(items) and _is_partial(items[-1])
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    values = _shared_of_request(astuple(request))
    shared: dict[str, Any] = {}
    if values != SHARED_DEFAULTS:
        shared = dict(zip(SHARED_FIELDS, values, strict=True))
    chat = ResponsesChat(
        model=request.model,
        messages=messages,
        continue_final_message=continues,
        add_generation_prompt=not continues,
        max_completion_tokens=request.max_output_tokens,
        reasoning_effort=request.reasoning.effort if request.reasoning else None,
        parallel_tool_calls=False,
        keeps_all_calls=request.parallel_tool_calls is not False,
        **shared,
    )
    _set_tools(chat, request)
    if request.logprobs is not None:
        if request.logprobs < -1:
            raise bad_request("logprobs must be -1 or greater", "logprobs")
        chat.logprobs = True
        chat.top_logprobs = request.logprobs
    text_format = request.text.format if request.text else None
    if text_format is not None:
        if request.structured_outputs is not None:
            raise bad_request(
                "structured_outputs and text.format cannot be combined", "structured_outputs"
            )
        chat.response_format = _response_format(text_format)
    chat.check_rules()
    if request.tools and chat.tools is None:
        chat.tools = []  # templates get an empty list: the tools are no functions
    return chat


def prepend_history(
    chat: ResponsesChat, messages: Sequence[Message], output: Sequence[JsonObject]
) -> None:
    """Prepends an earlier exchange to `chat`: its messages, and the items of its response.

    Earlier instructions and reasoning are dropped. Calls of the response are only for scripts: see
    `prompt_messages`.
    """
    has_instructions = bool(chat.messages) and chat.messages[0]["role"] == "system"
    items = [msgspec.convert(item, InputItem) for item in output if item["type"] != "reasoning"]
    history = [message for message in messages if message["role"] != "system"]
    for message in _messages(items):
        if "tool_calls" in message:
            message[HAS_HIDDEN_CALLS] = True
        history.append(message)
    start = int(has_instructions)
    chat.messages[start:start] = history
    _allow_reply_after_results(chat)


def prompt_messages(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages of the prompt.

    Like vLLM, it leaves out the calls of responses that `previous_response_id` names.
    """
    shown: list[Message] = []
    for message in messages:
        if HAS_HIDDEN_CALLS not in message:
            shown.append(message)
        elif "content" in message:
            shown.append({"role": message["role"], "content": message["content"]})
    return shown


def echo_text(response_input: str | Sequence[InputItem]) -> str:
    """Returns the reply of mode `echo`: the text of the last item."""
    if isinstance(response_input, str):
        return response_input
    if not response_input:
        return ""
    item = response_input[-1]
    if item.kind in CALLS:
        return f"{item.name}({item.arguments or item.payload})"
    content = item.content or item.summary
    if item.kind in RESULTS:
        content = item.output
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for part in content or ():
        if part.type == "input_image":
            texts.append(f"image: {part.image_url}")
        else:
            texts.append(part.text_or_refusal or "")
    return "\n".join(texts)


def _is_partial(item: InputItem) -> bool:
    """Returns true for a message that the reply continues."""
    is_message = item.kind in ("message", "reasoning")
    return is_message and item.status in ("in_progress", "incomplete")


def _messages(items: Iterable[InputItem], joins: bool = True) -> list[Message]:
    """Returns the messages of `items`.

    With `joins`, consecutive items of the assistant become one message.
    """
    messages: list[Message] = []
    slices = Slices()
    for item in items:
        slices.spend()
        message = _message(item)
        if not joins or not messages or not _can_join(messages[-1], message):
            messages.append(message)
            continue
        previous = messages[-1]
        calls = cast(list[JsonObject], message.pop("tool_calls", []))
        previous |= message
        if calls:
            # In place: a copy for each of thousands of calls would take seconds.
            earlier_calls = cast(list[JsonObject], previous.setdefault("tool_calls", []))
            earlier_calls += calls
    return messages


def _can_join(previous: Message, message: Message) -> bool:
    """Calls join any message of the assistant; reasoning and text only one that has none."""
    if previous["role"] != "assistant" or message["role"] != "assistant":
        return False
    return not any(key in previous and key in message for key in ("content", "reasoning"))


def _message(item: InputItem) -> Message:
    if item.kind in CALLS:
        return {"role": "assistant", "tool_calls": [_tool_call(item)]}
    if item.kind in RESULTS:
        return {
            "role": "tool",
            "tool_call_id": item.call_id or "",
            "content": _content(item.output),
        }
    if item.kind == "reasoning":
        if item.encrypted_content:
            raise bad_request("Encrypted content is not supported.", "input")
        return {"role": "assistant", "reasoning": _first_text(item.content or item.summary)}
    if item.role == "assistant":
        return {"role": item.role, "content": _first_text(item.content)}
    return {"role": item.role, "content": _content(item.content)}


def _tool_call(item: InputItem) -> JsonObject:
    name = item.name or ""
    arguments = item.arguments
    if item.kind == "custom_tool_call":
        arguments = json.dumps({response_tools.CUSTOM_INPUT: item.payload}, ensure_ascii=False)
    elif item.namespace:
        name = response_tools.flat_name(item.namespace, name)
    # The order of the keys is vLLM's, which a template may print.
    function = {"name": name, "arguments": arguments}
    return {"id": item.call_id, "function": function, "type": "function"}


def _first_text(content: Content | None) -> str:
    if isinstance(content, str):
        return content
    if not content:
        return ""
    return content[0].text_or_refusal or ""


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
            parts.append({"type": "text", "text": part.text_or_refusal})
    return parts


def _response_format(text_format: TextFormat) -> options.ResponseFormat:
    schema = None
    if text_format.type == "json_schema":
        schema = options.JsonSchema(
            name=text_format.name or "", json_schema=text_format.json_schema
        )
    return options.ResponseFormat(type=text_format.type, json_schema=schema)


def _set_tools(chat: ResponsesChat, request: ResponsesRequest) -> None:
    """Sets tools and tool choice. Where calls are drawn, ``auto`` calls a tool for certain."""
    functions: list[options.FunctionDefinition] = []
    if request.tools:
        functions = [function for function, _ in response_tools.callable_functions(request.tools)]
        must_call = request.tool_choice == "required"
        must_call = must_call or response_tools.is_named_choice(request.tool_choice)
        if not functions and must_call:
            raise bad_request(
                "tool_choice requires a call, but no tool can be called", "tool_choice"
            )
    chat.tools = None
    chat.tool_choice = "none"
    if functions:
        chat.tools = [options.Tool(function=function) for function in paced(functions)]
        chat.tool_choice = _tool_choice(request.tool_choice)
        chat.draws_call = request.tool_choice == "auto"
    _allow_reply_after_results(chat)


def _allow_reply_after_results(chat: ResponsesChat) -> None:
    """Stops requiring a call after the result of a function, or an agent would never end.

    The next user message may ask for a call again.
    """
    for message in reversed(chat.messages):
        if message["role"] == "tool":
            chat.after_results = True
            chat.draws_call = False
            if chat.tool_choice != "none":
                chat.tool_choice = "auto"
        if message["role"] in TURNS:
            return


def _tool_choice(choice: str | JsonObject) -> options.ToolChoice:
    if isinstance(choice, str):
        return cast(Literal["none", "auto", "required"], choice)
    if response_tools.is_named_choice(choice):
        return options.NamedToolChoice(function=msgspec.convert(choice, options.NamedFunction))
    if choice["type"] != "allowed_tools":
        return "auto"
    names = [tool.get("name") for tool in cast(list[JsonObject], choice["tools"])]
    tools = [
        options.Tool(function=options.FunctionDefinition(name=name))
        for name in names
        if isinstance(name, str)
    ]
    if not tools:
        return "none"
    mode = cast(Literal["auto", "required"], choice["mode"])
    return options.NamedToolChoice(
        type="allowed_tools", allowed_tools=options.AllowedTools(mode=mode, tools=tools)
    )
