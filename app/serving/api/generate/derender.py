"""Both /derender routes: the token ids of a generate answer as a chat or a text completion.

The server keeps nothing between the events of a stream: the client sends back the state that it received, and
all tokens are read again at each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from msgspec import Struct

from app.engine.parsing import Read, hermes, listed, plain, thoughts
from app.serving.api.logprobs import token_bytes
from app.serving.api.pipeline import RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol import chat as chats
from app.serving.protocol import common as wire
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.completions import Completion, CompletionChoice, CompletionRequest
from app.serving.protocol.decoding import decode_first
from app.serving.protocol.generate import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderStreamRequest,
    GenerateOutput,
    Logprobs,
    RenderedChoice,
    StreamState,
)

BROKEN = "\ufffd"
NEEDS_REQUEST = "chat_request is needed beside a parser: the reply would show its markup."
NEEDS_PROMPT = "prompt_token_ids are needed beside a parser: they tell whether thoughts have begun."


def routes(pipeline: RequestPipeline) -> list[Route]:
    chat, text = Derenderer(pipeline, pipeline.limits.parses), Derenderer(pipeline, False)

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderChatRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(chat.chunk(asked, "chat.completion.chunk"))
        return json_response(chat.chat(asked))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderCompletionRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(text.chunk(asked, "text_completion"))
        return json_response(text.completion(asked))

    return [
        post("/v1/chat/completions/derender", derender_chat),
        post("/v1/completions/derender", derender_completion),
    ]


class Parts(Struct):
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = []
    raw: str = ""
    """The whole reply, where its last call is cut off: it then is a text."""


class Derenderer:
    """Reads token ids back; `parses`: the server separates thoughts or calls from a chat's text."""

    def __init__(self, pipeline: RequestPipeline, parses: bool) -> None:
        self._pipeline, self._parses = pipeline, parses
        self._new_id = pipeline.identity.fresh_id

    def chat(self, asked: DerenderChatRequest) -> chats.ChatCompletion:
        answer, chat, choices = asked.generate_response, asked.chat_request, list[chats.ChatChoice]()
        self._check(asked.prompt_token_ids)
        if self._parses and chat is None:
            raise bad_request(NEEDS_REQUEST)
        for choice in _ended([answer]):
            message = self._message(chat, self._read(choice, StreamState(), chat)[1])
            entries, ids = self._named(choice.logprobs), self._shown_ids(choice, chat)
            logprobs, finish = _content(entries), choice.finish_reason or ""
            made = chats.ChatChoice(choice.index, message, logprobs, finish, choice.stop_reason, ids)
            choices.append(made)
        same = {name: getattr(answer, name) for name in ("prompt_logprobs", "kv_transfer_params", "metrics")}
        head = self._head([answer], asked.model, "chat.completion", asked.prompt_tokens or 0)
        return chats.ChatCompletion(**head, choices=choices, **same)

    def completion(self, asked: DerenderCompletionRequest) -> Completion:
        answers, choices = asked.generate_responses, list[CompletionChoice]()
        if not answers:
            raise bad_request("generate_responses must not be empty")
        self._check(*(asked.prompt_token_ids or ()))
        for index, choice in enumerate(_ended(answers)):
            made = self._text_choice(choice, StreamState(), asked.completion_request)
            choices.append(CompletionChoice(**{**made, "index": index}, prompt_logprobs=None))
        transfers = [answer.kv_transfer_params for answer in answers]
        same: dict[str, Any] = {
            "kv_transfer_params": transfers[0] if transfers.count(transfers[0]) == len(answers) else None,
            "metrics": answers[0].metrics if len(answers) == 1 else None,
        }
        head = self._head(answers, asked.model, "text_completion", sum(asked.prompt_tokens or ()))
        return Completion(**head, choices=choices, **same)

    def _head(
        self, answers: Sequence[GenerateOutput], model: str | None, kind: str, prompt_tokens: int
    ) -> dict[str, Any]:
        choices = [choice for answer in answers for choice in answer.choices]
        tokens = sum(len(choice.token_ids or ()) for choice in choices)
        return {
            "id": answers[0].request_id or self._new_id(),
            "object": kind,
            "created": self._pipeline.identity.now_s(),
            "model": model or self._pipeline.models.names[0],
            "system_fingerprint": None,
            "usage": wire.Usage(prompt_tokens, prompt_tokens + tokens, tokens, None, None),
        }

    def chunk(self, asked: DerenderStreamRequest, kind: str) -> JsonObject:
        event, state, chat = asked.generate_chunk, asked.stream_state or StreamState(), asked.chat_request
        if self._parses and (chat is None or asked.prompt_token_ids is None):
            raise bad_request(NEEDS_REQUEST if chat is None else NEEDS_PROMPT)
        if len(event.choices) > 1:
            raise bad_request(f"an event has one choice at most, got {len(event.choices)}")
        self._check(asked.prompt_token_ids)
        chunk: JsonObject = self._head([event], asked.model, kind, 0)
        chunk |= {"usage": None, "metrics": event.metrics}
        if event.usage is not None:
            given, tokens = event.usage.prompt_tokens, event.usage.completion_tokens or 0
            prompt = given if asked.prompt_tokens is None else asked.prompt_tokens
            chunk["usage"] = wire.Usage(prompt, prompt + tokens, tokens, None, None)
        if kind == "text_completion":
            request = asked.completion_request
            chunk["choices"] = [self._text_choice(it, state, request) for it in event.choices]
        else:
            chunk["choices"] = [self._chat_event(it, state, chat) for it in event.choices]
            chunk |= {"prompt_token_ids": None, "prompt_text": None}
        return {"chunk": chunk, "stream_state": state}

    def _read(
        self,
        choice: RenderedChoice,
        state: StreamState,
        request: ChatCompletionRequest | CompletionRequest | None,
    ) -> tuple[str, str]:
        """Returns the text before and behind an event, and adds its tokens to the state.

        Half a character waits for its end.
        """
        ids, decode = choice.token_ids or [], self._pipeline.tokenizer.decode
        skips = not self._parses and (request is None or request.skip_special_tokens)
        before = decode(state.output_token_ids, skips).rstrip(BROKEN)
        state.output_token_ids = [*state.output_token_ids, *ids]
        state.output_chunk_lens += [len(ids)] if ids else []
        self._check(state.output_token_ids)
        text = decode(state.output_token_ids, skips)
        return before, text.rstrip(BROKEN) if choice.finish_reason is None else text

    def _text_choice(
        self, choice: RenderedChoice, state: StreamState, request: CompletionRequest | None
    ) -> dict[str, Any]:
        entries, (before, text) = self._named(choice.logprobs), self._read(choice, state, request)
        logprobs, offset = None, state.logprob_text_offset
        if entries is not None:
            tokens = [entry.token for entry in entries]
            tops = [{it.token: it.logprob for it in entry.top_logprobs} or None for entry in entries]
            offsets = list(accumulate(map(len, tokens), initial=offset))[: len(tokens)]
            values = [entry.logprob for entry in entries]
            logprobs = wire.CompletionLogprobs(offsets, values, tokens, tops)
        state.logprob_text_offset += len(text) - len(before)
        return {
            "index": choice.index,
            "text": text[len(before) :],
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def _chat_event(
        self, choice: RenderedChoice, state: StreamState, chat: ChatCompletionRequest | None
    ) -> JsonObject:
        entries = None if self._parses else self._named(choice.logprobs)
        before, text = self._read(choice, state, chat)
        finish = choice.finish_reason
        old, new = self._parts(chat, before, False), self._parts(chat, text, finish is not None)
        delta = self._delta(chat, state, old, new)
        if finish and new.calls and chat is not None and isinstance(chat.tool_choice, str | None):
            finish = "tool_calls"
        return {
            "index": choice.index,
            "delta": delta,
            "logprobs": _content(entries),
            "finish_reason": finish,
            "stop_reason": choice.stop_reason,
            "token_ids": self._shown_ids(choice, chat),
        }

    def _parts(self, chat: ChatCompletionRequest | None, text: str, ends: bool) -> Parts:
        read: Read = plain
        if self._parses and chat is not None:
            if chat.tools and chat.tool_choice != "none":
                as_llama = self._pipeline.settings.tools.tool_call_parser == "llama3_json"
                read = listed if as_llama else hermes
            if self._pipeline.limits.reasons:
                read = partial(thoughts, then=read)
        parts = Parts()
        for part, piece in read(text, ends):
            if part is None:
                parts.content += piece
            elif part.kind == "reasoning":
                parts.reasoning += piece
            elif part.raw:
                parts.raw = part.raw
            else:
                given = "".join(arguments for _, arguments in parts.calls[part.number :])
                parts.calls[part.number :] = [(part.name, given + piece)]
        return parts

    def _message(self, chat: ChatCompletionRequest | None, text: str) -> chats.ChatMessage:
        parts = self._parts(chat, text, True)
        said, calls = parts.raw or parts.content, [] if parts.raw else parts.calls
        forced = chat is not None and self._parses and chat.tool_choice not in ("none", "auto", None)
        is_open = said or forced or not (calls or parts.reasoning)
        message = chats.ChatMessage("assistant", said if is_open else None)
        if calls:
            made = [(self._new_id(), chats.FunctionCall(*call)) for call in calls]
            message.tool_calls = [chats.ToolCall(id, "function", function=function) for id, function in made]
        if parts.reasoning and chat is not None and chat.include_reasoning:
            message.reasoning = parts.reasoning
        return message

    def _delta(
        self, chat: ChatCompletionRequest | None, state: StreamState, old: Parts, new: Parts
    ) -> JsonObject:
        """Returns what a message has got since it was `old`: a call's first event has its id and name."""
        thoughts = new.reasoning[len(old.reasoning) :] if chat is not None and chat.include_reasoning else ""
        delta: JsonObject = {
            "role": None if state.role_sent else "assistant",
            "content": new.content[len(old.content) :] or None,
            "reasoning": thoughts or None,
        }
        state.role_sent, state.tools_streamed, calls = True, bool(new.calls), list[JsonObject]()
        for number, (name, arguments) in enumerate(new.calls):
            call: JsonObject = {"id": None, "type": None, "index": number}
            if begins := number >= len(old.calls):
                state.last_tool_call_ids.append(f"chatcmpl-tool-{self._new_id()}")
                call |= {"id": state.last_tool_call_ids[-1], "type": "function"}
            more = arguments if begins else arguments[len(old.calls[number][1]) :]
            if more or begins:
                calls.append(call | {"function": {"name": name if begins else None, "arguments": more}})
        return delta | {"tool_calls": calls} if calls else delta

    def _named(self, logprobs: Logprobs | None) -> list[wire.ChatLogprob] | None:
        if logprobs is None or logprobs.content is None:
            return None
        entries = []
        for entry in logprobs.content:
            candidates = (entry, *entry.top_logprobs)
            texts = self._pipeline.tokenizer.token_texts([it.token_id for it in candidates])
            own, *tops = [
                wire.ChatAlternative(text, it.logprob, token_bytes(text))
                for text, it in zip(texts, candidates, strict=True)
            ]
            entries.append(wire.ChatLogprob(own.token, own.logprob, own.bytes, tops))
        return entries

    def _shown_ids(self, choice: RenderedChoice, chat: ChatCompletionRequest | None) -> list[int] | None:
        shows = chat is not None and chat.return_token_ids and (not self._parses or chat.include_reasoning)
        return choice.token_ids if shows else None

    def _check(self, *lists: Sequence[int] | None) -> None:
        """Raises ApiError 400 for more tokens than a server of this context could have returned."""
        most = self._pipeline.limits.max_model_len
        if any(len(ids or ()) > most for ids in lists):
            raise bad_request(f"there are more tokens than max_model_len, {most}")


def _ended(answers: Sequence[GenerateOutput]) -> Iterator[RenderedChoice]:
    """Yields the choices of whole answers. ApiError 400 for one without tokens."""
    for choice in [choice for answer in answers for choice in answer.choices]:
        if not choice.token_ids:
            raise bad_request(f"choice {choice.index} has no token_ids")
        choice.finish_reason = choice.finish_reason or "stop"
        yield choice


def _content(entries: Sequence[wire.ChatLogprob] | None) -> wire.LogprobContent | None:
    return None if entries is None else wire.LogprobContent(entries)
