"""Messages and errors of the Anthropic family (vllm-api.md section 7).

A message is one JSON body, or named server-sent events. It is a list of content blocks. Tokens of one part
belong to one block: a block begins where another part does, and blocks are numbered in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import TypeVar

import msgspec
from cachetools import LRUCache
from msgspec import UNSET, Raw, Struct, UnsetType, convert, to_builtins

from app.engine.core.outputs import EngineOutput, Part, Started, Tokens
from app.serving.api.chat.prompt import chat_options, chat_prompt
from app.serving.api.chat.tools import check_tool_choice
from app.serving.api.errors import as_api_error, forget_frames
from app.serving.api.identity import ResponseMeta, address_of
from app.serving.api.pipeline import ChatRules, RequestPipeline
from app.serving.api.writer import ResponseWriter, Segment
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol import anthropic as wire
from app.serving.protocol.anthropic import (
    AnthropicBlock,
    Asked,
    CountTokensRequest,
    ErrorDetail,
    ErrorResponse,
    MessageParam,
    MessagesRequest,
    ThreadContinue,
    ToolParam,
    chat_request,
)
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.common import GAP, HOLE, ECTransferParams, KVTransferParams, encode
from app.serving.protocol.options import Effort
from app.text import Tokenizer
from app.text.base import ChatOptions, TokenizerInputError

T = TypeVar("T")

TOOL_USE_ID = "chatcmpl-tool-"
"""Prefix of vLLM's own ids, for the chat behind a message."""
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cache_threshold": "max_tokens",
    "content_filter": "refusal",
}
"""Stop reasons by ending; an ending without one, such as an abort, is null."""


class MessageResponseOptions(Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    prompt_details: bool = False
    """Usage counts cached tokens separately."""
    transfer: KVTransferParams | None = None
    """`kv_transfer_params` of the answer."""
    encoded_media: ECTransferParams | None = None
    """`ec_transfer_params` of the answer."""


class MessageWriter(ResponseWriter):
    """Writes the answer to one request; `new_id` draws ids of tool uses and signatures of thoughts.

    `keep`, if given, receives the blocks of a complete message, and the bytes of their texts.
    """

    def __init__(
        self,
        meta: ResponseMeta,
        options: MessageResponseOptions,
        new_id: Callable[[], str],
        keep: Callable[[Sequence[AnthropicBlock], int], None] | None = None,
    ) -> None:
        super().__init__(1)
        self._keep = keep
        self._meta = meta
        self._options = options
        self._new_id = new_id
        self._segment: Segment | None = None
        """The open block of a stream."""
        self._index = -1
        self._begin = self._end = b""
        """Bytes around a piece of the open block's text."""

    def _tokens(self, output: Tokens) -> bytes:
        segment = self._segment
        if segment is not None and output.part is segment.part and len(output.texts) == 1:
            # Nearly every output of a paced stream comes here.
            self.choices[0].count(output)
            text = output.texts[0]
            if self._keep is not None:
                segment.texts.append(text)
            return b"%b%b%b" % (self._begin, encode(text), self._end) if text else b""
        return b"".join(self._events(output))

    def _failure(self, error: Exception) -> bytes:
        return error_event(error)

    def closing(self) -> bytes:
        if self.has_failed:
            return b""
        self._keep_reply()
        end = _event("message_delta", delta=self._stop(), usage=self._usage())
        return b"".join((self._close(), end, _event("message_stop")))

    def _start(self, output: Started) -> bytes:
        """Counts all tokens of the prompt as input; the last usage has the cached ones."""
        self.begin(output)
        message = wire.MessageResponse(
            id=self._meta.id,
            content=(),
            model=self._meta.model,
            stop_reason=None,
            stop_sequence=None,
            usage=wire.MessageUsage(self.usage.told(self._options.prompt_tokens, 0)[0], 0),
        )
        return _event("message_start", message=message)

    def _events(self, output: Tokens) -> Iterator[bytes]:
        segment = self.choices[0].shown(output, self._own_id)
        if segment is None:
            return
        if segment is not self._segment:
            yield self._close()
            yield self._open(segment)
        if self._keep is not None:
            segment.texts += output.texts
        for text in output.texts:
            if text:
                yield b"%b%b%b" % (self._begin, encode(text), self._end)

    def _own_id(self, part: Part | None) -> str:
        if part is None:
            return ""
        return self._new_id() if part.kind == "reasoning" else part.id or TOOL_USE_ID + self._new_id()

    def _open(self, segment: Segment) -> bytes:
        self._segment = segment
        self._index += 1
        self._begin, self._end = self._delta(*DELTAS[segment.kind], HOLE).split(GAP)
        block = wire.ThinkingBlock("") if segment.kind == "reasoning" else _block(segment, "")
        return _event("content_block_start", content_block=block, index=self._index)

    def _delta(self, kind: str, key: str, value: str | Raw) -> bytes:
        return _event("content_block_delta", delta={"type": kind, key: value}, index=self._index)

    def _close(self) -> bytes:
        """Returns the end of the open block, if there is one."""
        segment = self._segment
        if segment is None:
            return b""
        stop = _event("content_block_stop", index=self._index)
        if segment.kind != "reasoning":
            return stop
        return self._delta("signature_delta", "signature", segment.id) + stop

    def take(self, output: EngineOutput) -> None:
        if type(output) is not Tokens:
            super().take(output)
            return
        if self.choices[0].cut_off(output, self._own_id):
            return
        segment = self.choices[0].shown(output, self._own_id)
        if segment is not None:
            segment.texts += output.texts

    def whole(self) -> wire.MessageResponse:
        options = self._options
        self._keep_reply()
        blocks = [_block(segment, segment.text) for segment in self.choices[0].segments]
        stop = self._stop()
        return wire.MessageResponse(
            id=self._meta.id,
            content=blocks or [wire.TextBlock("")],
            model=self._meta.model,
            stop_reason=_or_unset(stop.stop_reason),
            stop_sequence=_or_unset(stop.stop_sequence),
            usage=self._usage(),
            kv_transfer_params=_or_unset(options.transfer),
            ec_transfer_params=_or_unset(options.encoded_media),
        )

    def _keep_reply(self) -> None:
        if self._keep is not None:
            segments = self.choices[0].segments
            blocks = [to_builtins(_block(segment, segment.text)) for segment in segments]
            size = sum(len(segment.text.encode()) for segment in segments)
            self._keep([convert(block, AnthropicBlock) for block in blocks], size)

    def _stop(self) -> wire.StopDelta:
        finish = self.choices[0].finish
        if finish.reason == "stop":
            if isinstance(finish.stop_reason, str):
                return wire.StopDelta("stop_sequence", finish.stop_reason)
            if self.choices[0].called:
                return wire.StopDelta("tool_use", None)
        return wire.StopDelta(STOP_REASONS.get(finish.reason), None)

    def _usage(self) -> wire.MessageUsage:
        prompt_tokens, tokens = self.usage.told(self._options.prompt_tokens, self.choices[0].tokens)
        if not self._options.prompt_details:
            return wire.MessageUsage(prompt_tokens, tokens)
        read, created = self.told_cached, self.told_created
        return wire.MessageUsage(max(0, prompt_tokens - read - created), tokens, created, read)


def _or_unset(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _block(segment: Segment, text: str) -> wire.ContentBlock:
    if segment.part is None:
        return wire.TextBlock(text)
    if segment.part.kind == "reasoning":
        return wire.ThinkingBlock(text, segment.id)
    try:
        arguments = msgspec.json.decode(text)
    except msgspec.DecodeError:
        arguments = {}
    known = arguments if isinstance(arguments, dict) else {}
    return wire.ToolUseBlock(segment.id, segment.part.name, known)


def _event(name: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))


DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Type and key of a delta, by kind of block."""


SCHEMA = "Bad Request"
"""Error type of a schema violation, refused in OpenAI's shape before this family begins."""


class ThreadNotFound(ApiError):
    """No conversation has this id; `details` make Anthropic's SDK send the whole conversation again."""

    details = {"error_code": "thread_not_found"}

    def __init__(self, message_id: str) -> None:
        super().__init__(404, "NotFoundError", f"There is no thread of the message {message_id[:80]!r} here.")


def error_body(error: ApiError) -> bytes:
    """The compact JSON body: ``{"type":"error","error":{"type","message"}}``, with vLLM's own type words."""
    # A message may quote a lone surrogate of the client.
    message = error.message.encode("utf-8", "replace").decode()
    details = error.details if isinstance(error, ThreadNotFound) else UNSET
    return encode(ErrorResponse(ErrorDetail(error.type, message, details)))


def error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + error_body(_known(error)) + b"\n\n"


def message_error(error: Exception) -> Response:
    """Returns the response for `error` in this family; the schema's errors keep OpenAI's shape."""
    known = _known(error)
    forget_frames(error)
    body = known.body() if known.type == SCHEMA else error_body(known)
    return json_response(body, known.status, known.headers)


def _known(error: Exception) -> ApiError:
    if isinstance(error, RecursionError):  # a tool's input, one level short of the parser's limit
        return bad_request("The request is nested too deeply.")
    return as_api_error(error)


MOST_BYTES = 64 << 20
LEAST_BYTES = 1 << 12
"""Least bytes that a conversation counts."""


class Thread(Struct, frozen=True):
    """A conversation with its last reply, system prompt and tools; `size` covers requests and replies."""

    messages: Sequence[MessageParam]
    system: str | list[AnthropicBlock] | None
    tools: list[ToolParam] | None
    size: int


class ThreadStore:
    """Keeps conversations by the id of their last reply; forgets the least recently used one first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.limit_bytes = most_bytes
        self._kept: LRUCache[str, Thread] = LRUCache(
            most_bytes, lambda kept: min(max(kept.size, LEAST_BYTES), most_bytes)
        )

    @property
    def size_bytes(self) -> int:
        """Bytes that all conversations count."""
        return int(self._kept.currsize)

    def resume(self, asked: MessagesRequest) -> int:
        """Puts the conversation so far before the turns of `asked`, and returns its bytes.

        System and tools come from its beginning. ApiError 404 for an unknown or forgotten conversation.
        """
        if not isinstance(asked.thread, ThreadContinue):
            return 0
        before = self._kept.get(asked.thread.previous_message_id)
        if before is None:
            raise ThreadNotFound(asked.thread.previous_message_id)
        asked.messages = [*before.messages, *asked.messages]
        asked.system, asked.tools = before.system, before.tools
        return before.size

    def keep(
        self, message_id: str, asked: MessagesRequest, size: int, reply: Sequence[AnthropicBlock]
    ) -> None:
        turns = [*asked.messages, MessageParam(role="assistant", content=list(reply))]
        self._kept[message_id] = Thread(turns, asked.system, asked.tools, size)


def routes(pipeline: RequestPipeline, threads: ThreadStore) -> list[Route]:
    """Returns the routes; `threads` keeps conversations for clients that request it."""
    chat_of = message_chats(pipeline)

    def create_message(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        message = pipeline.decode(context, MessagesRequest)
        size = threads.resume(message) + (context.content_length or 0)
        asked = chat_of(message)
        accepted = pipeline.admit(asked, context)
        check_tool_choice(asked, pipeline.builder.settings.tools)
        prompt = chat_prompt(pipeline, asked, asked.messages)
        head = pipeline.identity.response_meta("chatcmpl", context, asked.request_id, accepted.model)
        media = prompt.features
        shape = MessageResponseOptions(
            prompt_tokens=len(prompt.ids),
            prompt_details=pipeline.prompt_details,
            transfer=address_of(asked, pipeline.identity, head, len(prompt.ids)),
            encoded_media=pipeline.encoded_media(media and media["mm_hashes"]),
        )

        def keep(reply: Sequence[AnthropicBlock], reply_size: int) -> None:
            threads.keep(head.id, message, size + reply_size, reply)

        answer = MessageWriter(head, shape, pipeline.identity.fresh_id, keep if message.thread else None)
        return pipeline.submit(accepted, head, [prompt], answer, context)

    def count_tokens(context: RequestContext) -> Response:
        """Number of tokens in a conversation's prompt."""
        asked = chat_of(pipeline.decode(context, CountTokensRequest))
        pipeline.models.resolve(asked.model)
        check_tool_choice(asked, pipeline.builder.settings.tools)
        counted = len(chat_prompt(pipeline, asked, asked.messages).ids)
        return json_response(
            {"input_tokens": counted, "context_management": {"original_input_tokens": counted}}
        )

    return [
        post("/v1/messages", create_message, message_error),
        post("/v1/messages/count_tokens", count_tokens, message_error),
    ]


THINKING_EFFORTS: Sequence[Effort] = ("low", "medium", "high", "xhigh", "max")
"""Efforts that must render another prompt than `none`, if the chat template knows that switch."""


def message_chats(pipeline: RequestPipeline) -> Callable[[Asked], ChatCompletionRequest]:
    tokenizer = pipeline.tokenizer
    effort = pipeline.builder.settings.reply.anthropic_disabled_thinking_effort
    merges_system = cache(partial(_merges_system, tokenizer))
    probe = partial(_disabled_effort, tokenizer, pipeline.chat_rules)
    disabled_effort = cache(lambda: probe() if effort == "auto" else effort)
    return lambda asked: chat_request(asked, merges_system, disabled_effort)


def _merges_system(tokenizer: Tokenizer) -> bool:
    """True when the chat template refuses system turns further on in a conversation."""
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        tokenizer.render_chat(turns, ChatOptions(add_generation_prompt=False))
    except TokenizerInputError:
        return True
    return False


def _disabled_effort(tokenizer: Tokenizer, rules: ChatRules) -> Effort:
    """Returns the effort that means no thoughts: `low` where the chat template does not know `none`."""

    def prompt(effort: Effort) -> str:
        chat = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort)
        return tokenizer.render_chat(chat.messages, chat_options(chat, rules))

    try:
        without = prompt("none")
    except TokenizerInputError:
        return "low"
    for effort in THINKING_EFFORTS:
        with suppress(TokenizerInputError):
            if prompt(effort) == without:
                return "low"
    return "none"
