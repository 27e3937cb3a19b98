"""Finds the chat that a request for generation was rendered from.

The reply to a rendered chat is the reply to the chat itself: it has the same thoughts and calls.
These depend on `parse_context`, on the variables of the chat template, and on the last question in
the prompt.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from app.core.api.chat.prompt import chat_options
from app.core.api.chat.tools import tool_calls_of
from app.core.api.pipeline import RequestPipeline
from app.core.base.clock.pause import pause_if_possible
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import CompletionRequest
from app.core.protocol.convert import convert
from app.core.server.http.errors import ApiError
from app.core.text.base import TokenizerError
from app.extensions.scale_out import protocol as wire
from app.extensions.scale_out.parse_context import chat_of

PROBE = "understudy-probe-7f3a"
"""Content of the message whose place in a prompt is searched."""
REPLY = "understudy-reply-7f3a"
"""Content of the message before it."""
CALL: Mapping[str, object] = {
    "id": "0",
    "type": "function",
    "function": {"name": "x", "arguments": "{}"},
}
FIRST: Mapping[str, object] = {"role": "user", "content": "x"}
ANSWER: Mapping[str, object] = {"role": "assistant", "content": REPLY}
CALLING: Mapping[str, object] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
QUESTION: Mapping[str, object] = {"role": "user", "content": PROBE}
RESULT: Mapping[str, object] = {"role": "tool", "tool_call_id": "0", "content": PROBE}


def rendered_chat(
    pipeline: RequestPipeline, body: wire.GenerateRequest, prompt: str
) -> ChatCompletionRequest | None:
    """Returns the chat of a rendered request, whose only message is its last question.

    Returns None for a request that was not rendered from a chat, and for a wrong context, which
    only the output mode derender refuses. `prompt` is the text of the request's tokens.
    """
    if body.parse_context is not None:
        context = convert(wire.ParseContext, body.parse_context)
    elif body.reasoning_parser_kwargs is not None:
        kwargs = body.reasoning_parser_kwargs.chat_template_kwargs
        context = wire.ParseContext(chat_template_kwargs=kwargs)
    else:
        return None
    try:
        chat = chat_of(context)
        if chat.tools and chat.tool_choice != "none":
            question = last_question(
                pipeline, chat, prompt=prompt, has_calls=context.history_tool_call_cnt > 0
            )
            chat.messages = [{"role": "user", "content": question}]
    except (ApiError, TokenizerError):
        return None
    return chat


def separate_form(
    pipeline: RequestPipeline, chat: ChatCompletionRequest, completion: CompletionRequest
) -> None:
    """Removes the form of the calls of `chat` from `completion`, as the calls are drawn anyway.

    Any other form decides the text, so that no call is required beside it.

    Raises:
        ApiError: 400 as for the chat.
    """
    form = completion.structured_outputs
    calls = tool_calls_of(chat, pipeline.live.current.tools, pipeline.schemas)
    if form is None or calls is None:
        return
    may_be_of_calls = form.structural_tag is not None or form.json is not None
    if not may_be_of_calls:
        chat.tool_choice = "auto"
    elif calls.min_calls or any(tool.strict for tool in calls.tools):
        completion.structured_outputs = None


def last_question(
    pipeline: RequestPipeline, chat: ChatCompletionRequest, *, prompt: str, has_calls: bool
) -> str:
    """Returns the last message of the user in `prompt`, where the chat template shows its place.

    Pauses before each rendering, because a conversation may have many tools.

    Returns an empty text for a conversation that ends with the result of a tool. `has_calls`: the
    conversation has calls.

    Raises:
        ApiError: The chat has a template that requests may not bring.
        TokenizerError: The chat template fails.
    """
    kwargs = {**chat.chat_template_kwargs} if chat.chat_template_kwargs else {}
    kwargs.pop("continue_final_message", None)
    probe = replace(
        chat,
        add_generation_prompt=bool(kwargs.pop("add_generation_prompt", True)),
        documents=kwargs.pop("documents", None),
        chat_template_kwargs=kwargs,
    )
    options = chat_options(probe, pipeline.chat_rules, pipeline.known_tools)

    def render(messages: Sequence[Mapping[str, object]]) -> str:
        pause_if_possible()
        return pipeline.tokenizer.render_chat([*map(dict, messages)], options=options)

    first_head, _, tail = render([QUESTION]).partition(PROBE)
    later_head = render([FIRST, ANSWER, QUESTION]).partition(PROBE)[0].rpartition(REPLY)[2]
    ends: list[str] = []
    for head in (later_head, first_head):
        _, found, end = prompt.removesuffix(tail).rpartition(head or PROBE)
        if found:
            ends.append(end)
    question = min(ends, key=len, default="")
    if has_calls:
        call_turns = [FIRST, CALLING]
        question_start = render([*call_turns, QUESTION]).partition(PROBE)[0]
        result_start = render([*call_turns, RESULT]).partition(PROBE)[0]
        mark = result_start[common_length(question_start, result_start) :]
        if mark and mark in question:
            return ""
    return question


def common_length(first: str, second: str) -> int:
    """Returns the length of the common beginning of two texts, which may have megabytes.

    Halves the range and compares slices, which is 100 times faster than a loop over characters.
    """
    equal = 0
    different = min(len(first), len(second)) + 1
    while different - equal > 1:
        middle = (equal + different) // 2
        if first[equal:middle] == second[equal:middle]:
            equal = middle
        else:
            different = middle
    return equal
