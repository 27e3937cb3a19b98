"""Messages and errors of the Anthropic family (vllm-api.md section 7).

A message is one JSON body, or named server-sent events. It is a list of content blocks. Tokens of
one part belong to one block: a block begins where another part does, and blocks are numbered in
that order.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from sys import getsizeof

import msgspec
from msgspec import UNSET, Raw, Struct

from app.engine.core.outputs import Part, Started, Tokens
from app.engine.kvcache.memo import Memo
from app.serving.api.chat.parts import check_tool_choice
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.errors import as_api_error, forget_frames
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.api.writer import BlockWriter, Segment, named_event
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import Response, json_response
from app.serving.http.route import STREAM_MEDIA, Route, RouteDocs, post
from app.serving.protocol import anthropic as wire
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import EXAMPLE_CHAT, GAP, HOLE, encode, encode_to_keep
from app.serving.protocol.options import Effort
from app.text.base import ChatOptions, Tokenizer, TokenizerInputError

TOOL_USE_ID = "chatcmpl-tool-"
"""Prefix of vLLM's own ids, for the chat behind a message."""
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cache_threshold": "max_tokens",
    "content_filter": "refusal",
}
"""Stop reasons by ending; an ending without one, such as an abort, is null."""


class MessageWriter(BlockWriter):
    keep: Callable[[list[JsonObject]], None] | None = None

    def __init__(
        self,
        meta: ResponseMeta,
        prompt_tokens: int,
        prompt_details: bool,
        new_id: Callable[[], str],
    ) -> None:
        """With `prompt_details` the usage counts cached tokens separately."""
        super().__init__(new_id)
        self._meta, self._prompt_tokens, self._prompt_details = meta, prompt_tokens, prompt_details
        self._around = (b"", b"")
        """Bytes around a piece of the open block's text."""

    def _start(self, output: Started) -> bytes:
        """Counts all tokens of the prompt as input; the last usage has the cached ones."""
        self.begin(output)
        stop = {"stop_reason": None, "stop_sequence": None}
        usage: JsonObject = {
            "input_tokens": self.usage.override(self._prompt_tokens, 0)[0],
            "output_tokens": 0,
        }
        return _event("message_start", message=self._message([], stop, usage))

    def _message(
        self, content: list[JsonObject], stop: Mapping[str, object], usage: JsonObject
    ) -> JsonObject:
        head = {"id": self._meta.id, "type": "message", "role": "assistant", "content": content}
        return {**head, "model": self._meta.model, **stop, "usage": usage}

    def _begin_block(self, segment: Segment) -> bytes:
        before, after = self._delta(*DELTAS[segment.kind], HOLE).split(GAP)
        self._around = before, after
        block = _block(segment, "")
        block.pop("signature", None)
        return _event("content_block_start", content_block=block, index=self._index)

    def _texts(self, segment: Segment, output: Tokens) -> bytes:
        before, after = self._around
        return b"".join(
            [b"%b%b%b" % (before, encode(text), after) for text in output.texts if text]
        )

    def _end_block(self, segment: Segment) -> bytes:
        stop = _event("content_block_stop", index=self._index)
        if segment.kind != "reasoning":
            return stop
        return self._delta("signature_delta", "signature", segment.id) + stop

    def _delta(self, kind: str, key: str, value: str | Raw) -> bytes:
        return _event("content_block_delta", delta={"type": kind, key: value}, index=self._index)

    def _id_of(self, part: Part | None) -> str:
        if part is None:
            return ""
        return (
            self._new_id() if part.kind == "reasoning" else part.id or TOOL_USE_ID + self._new_id()
        )

    def _failure(self, error: Exception) -> bytes:
        return error_event(error)

    def closing(self) -> bytes:
        if self.has_failed:
            return b""
        self._blocks()
        end = _event("message_delta", delta=self._stop(), usage=self._usage())
        return b"".join((self._close(), end, _event("message_stop")))

    def whole(self) -> JsonObject:
        blocks = self._blocks() or [{"type": "text", "text": ""}]
        stop = {name: value for name, value in self._stop().items() if value is not None}
        transfers = {"kv_transfer_params": self.transfer, "ec_transfer_params": self.encoded_media}
        message = self._message(blocks, stop, self._usage())
        return message | {name: value for name, value in transfers.items() if value is not None}

    def _blocks(self) -> list[JsonObject]:
        """Returns the blocks of the complete message, and keeps them."""
        blocks = [_block(segment, segment.text) for segment in self.choices[0].segments]
        if self.keep is not None:
            self.keep(blocks)
        return blocks

    def _stop(self) -> Mapping[str, str | None]:
        finish = self.choices[0].finish
        reason, sequence = STOP_REASONS.get(finish.reason), None
        if finish.reason == "stop" and isinstance(finish.stop_reason, str):
            reason, sequence = "stop_sequence", finish.stop_reason
        elif finish.reason == "stop" and self.choices[0].called:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": sequence}

    def _usage(self) -> JsonObject:
        """Returns token counts; `input_tokens` excludes the cache's tokens when the server reports
        them.
        """
        prompt_tokens, tokens = self.usage.override(self._prompt_tokens, self.choices[0].tokens)
        if not self._prompt_details:
            return {"input_tokens": prompt_tokens, "output_tokens": tokens}
        read, created = self.told_cached, self.told_created
        counts = {"input_tokens": max(0, prompt_tokens - read - created), "output_tokens": tokens}
        return {**counts, "cache_creation_input_tokens": created, "cache_read_input_tokens": read}


def _block(segment: Segment, text: str) -> JsonObject:
    if segment.part is None:
        return {"type": "text", "text": text}
    if segment.part.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": segment.id}
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError:
        arguments = {}
    known = arguments if isinstance(arguments, dict) else {}
    return {"type": "tool_use", "id": segment.id, "name": segment.part.name, "input": known}


def _event(name: str, **fields: object) -> bytes:
    return named_event(name, {"type": name, **fields})


DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class ThreadNotFound(ApiError):
    """No kept conversation has this id; `details` make Anthropic's SDK send the whole conversation
    again.
    """

    details = {"error_code": "thread_not_found"}

    def __init__(self, message_id: str) -> None:
        super().__init__(
            404, "NotFoundError", f"There is no thread of the message {message_id[:80]!r} here."
        )


class Thread(Struct):
    messages: list[wire.MessageParam]
    system: str | list[wire.AnthropicBlock] | None
    tools: list[wire.ToolParam] | None


Threads = Memo[str, bytes]
"""Conversations as JSON, by the id of their last reply."""


def resume(threads: Threads, asked: wire.MessagesRequest) -> None:
    """Puts the conversation so far, its system prompt and its tools into `asked`."""
    if not isinstance(asked.thread, wire.ThreadContinue):
        return
    if (kept := threads.get(asked.thread.previous_message_id)) is None:
        raise ThreadNotFound(asked.thread.previous_message_id)
    before = msgspec.json.decode(kept, type=Thread)
    asked.messages = [*before.messages, *asked.messages]
    asked.system, asked.tools = before.system, before.tools


def error_body(error: ApiError) -> bytes:
    details = error.details if isinstance(error, ThreadNotFound) else UNSET
    return encode(wire.ErrorResponse(wire.ErrorDetail(error.type, error.message, details)))


def error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + error_body(as_api_error(error)) + b"\n\n"


def message_error(error: Exception) -> Response:
    """Returns the response for `error`; a misfit to the schema keeps OpenAI's shape."""
    known = as_api_error(error)
    forget_frames(error)
    body = known.body() if known.type == "Bad Request" else error_body(known)
    return json_response(body, known.status, known.headers)


def routes(pipeline: RequestPipeline, threads: Threads) -> list[Route]:
    chat_of = message_chats(pipeline)

    def create_message(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        message = pipeline.decode(context, wire.MessagesRequest)
        resume(threads, message)
        asked = chat_of(message)
        accepted = pipeline.admit(asked, context)
        check_tool_choice(asked, pipeline.settings.tools)
        prompt = chat_prompt(pipeline, asked, asked.messages)
        head = pipeline.identity.response_meta(
            "chatcmpl", context, asked.request_id, accepted.model
        )
        details = pipeline.settings.api.enable_prompt_tokens_details
        answer = MessageWriter(head, len(prompt.ids), details, pipeline.identity.fresh_id)

        def keep(reply: list[JsonObject]) -> None:
            turns = [*message.messages, {"role": "assistant", "content": reply}]
            conversation = {
                "messages": turns,
                "system": message.system,
                "tools": message.tools,
            }
            data = encode_to_keep(conversation)
            threads.put(head.id, data, getsizeof(data) + getsizeof(head.id))

        if message.thread is not None:
            answer.keep = keep
        return pipeline.submit(accepted, head, [prompt], answer, context)

    def count_tokens(context: RequestContext) -> Response:
        """Number of tokens in a conversation's prompt."""
        asked = chat_of(pipeline.decode(context, wire.CountTokensRequest))
        pipeline.models.resolve(asked.model)
        check_tool_choice(asked, pipeline.settings.tools)
        counted = len(chat_prompt(pipeline, asked, asked.messages).ids)
        before = {"original_input_tokens": counted}
        return json_response({"input_tokens": counted, "context_management": before})

    message_docs = RouteDocs(
        body=(wire.MessagesRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT, "max_tokens": 8},
        media=STREAM_MEDIA,
        errors=(wire.ErrorResponse,),
    )
    count_docs = RouteDocs(
        body=(wire.CountTokensRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT},
        errors=(wire.ErrorResponse,),
    )
    return [
        post("/v1/messages", create_message, message_error, docs=message_docs),
        post("/v1/messages/count_tokens", count_tokens, message_error, docs=count_docs),
    ]


def message_chats(
    pipeline: RequestPipeline,
) -> Callable[[wire.AnthropicRequest], ChatCompletionRequest]:
    tokenizer = pipeline.tokenizer
    effort = pipeline.settings.reply.anthropic_disabled_thinking_effort
    merges_system = cache(partial(_merges_system, tokenizer))
    probe = partial(_disabled_effort, tokenizer, pipeline.chat_rules)
    disabled_effort = cache(lambda: probe() if effort == "auto" else effort)
    return lambda asked: wire.chat_request(asked, merges_system, disabled_effort)


def _merges_system(tokenizer: Tokenizer) -> bool:
    """True when the chat template refuses system turns further on in a conversation."""
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        tokenizer.render_chat(turns, ChatOptions(add_generation_prompt=False))
    except TokenizerInputError:
        return True
    return False


def _disabled_effort(tokenizer: Tokenizer, rules: ChatRules) -> Effort:
    """Returns the effort that means no thoughts:

    `low` where the chat template does not know `none`.
    """

    def prompt(effort: Effort) -> str:
        chat = ChatCompletionRequest(
            messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort
        )
        return tokenizer.render_chat(chat.messages, chat_options(chat, rules))

    try:
        without = prompt("none")
    except TokenizerInputError:
        return "low"
    efforts: tuple[Effort, ...] = ("low", "medium", "high", "xhigh", "max")
    for effort in efforts:  # each renders another prompt, if the template knows the switch
        with suppress(TokenizerInputError):
            if prompt(effort) == without:
                return "low"
    return "none"
