"""Both /derender routes: the token ids of a generate answer as a chat or a text completion.

The server keeps nothing between the events of a stream: the client sends back the state that it received.
Without a parser the state is a window at the end of the text. A parser reads all tokens again at each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from app.engine.core.outputs import Part, PartReader, Tokens
from app.engine.parsing import HermesReader, ListedReader, ThoughtReader
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.writer import ChoiceState
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol.chat import ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import Usage
from app.serving.protocol.decoding import decode_first
from app.serving.protocol.generate import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderStreamRequest,
    GenerateAnswer,
    Logprobs,
    RenderedChoice,
    StreamState,
)
from app.serving.protocol.validation import MAX_CHOICES
from app.text import Tokenizer

SEED = 5
"""Tokens of the prompt that precede a reply's first token in decoding."""
CONTEXT = 4
"""Tokens that may hold the beginning of a character which a later token ends."""
BROKEN = "\ufffd"
NEEDS_REQUEST = "chat_request is needed beside a parser: the reply would show its markup."
NEEDS_PROMPT = "prompt_token_ids are needed beside a parser: they tell whether thoughts have begun."
Entry = dict[str, Any]
"""Log probability of a token, as JSON."""


class Window:
    """Decodes the next tokens of a text whose last few tokens are known."""

    def __init__(self, tokenizer: Tokenizer, skips: bool) -> None:
        """With `skips` the text leaves out special tokens."""
        self._tokenizer, self._skips = tokenizer, skips

    def begin(self, prompt_ids: Sequence[int] | None) -> StreamState:
        tokens = self.strings((prompt_ids or ())[-SEED - 2 :])
        return StreamState(
            prev_tokens=tokens, prefix_offset=max(len(tokens) - SEED, 0), read_offset=len(tokens)
        )

    def strings(self, ids: Sequence[int]) -> list[str]:
        """Returns the vocabulary's spelling of tokens, without special ones that are skipped."""
        tokenizer = self._tokenizer
        strings = tokenizer.token_strings(ids)
        if not self._skips:
            return strings
        return [it for it, each in zip(strings, ids, strict=True) if tokenizer.decode([each]) or not it]

    def read(self, state: StreamState, ids: Sequence[int]) -> tuple[str, StreamState]:
        """Returns the text of `ids`, and the state behind them. Half a character waits for its end."""
        join, texts = self._tokenizer.join, []
        tokens, prefix, read = list(state.prev_tokens), state.prefix_offset, state.read_offset
        for token_id in ids:
            tokens += self.strings([token_id])
            before, now = join(tokens[prefix:read]), join(tokens[prefix:])
            if len(now) > len(before) and not now.endswith(BROKEN):
                texts.append(now[len(before) :])
                tokens, prefix, read = tokens[read:], 0, len(tokens) - read
        context = [*state.logprob_context_token_ids, *ids][-CONTEXT:]
        state = replace(
            state,
            prev_tokens=tokens[prefix:],
            prefix_offset=0,
            read_offset=max(read - prefix, 0),
            logprob_context_token_ids=context,
        )
        return "".join(texts), state


def _reader(pipeline: RequestPipeline, chat: ChatCompletionRequest) -> PartReader | None:
    """Returns the reader that separates thoughts and calls from a reply to `chat`; None without parsers."""
    calls: PartReader | None = None
    if chat.tools and chat.tool_choice != "none":
        as_llama = pipeline.settings.tools.tool_call_parser == "llama3_json"
        calls = ListedReader() if as_llama else HermesReader()
    return ThoughtReader(calls) if pipeline.limits.reasons else calls


def _pieces(reader: PartReader | None, texts: Sequence[str], ends: bool) -> Iterator[tuple[Part | None, str]]:
    for text in texts:
        yield from ((None, text),) if reader is None else reader.feed(text)
    if ends and reader is not None:
        yield from reader.finish()


def chat_message(pipeline: RequestPipeline, chat: ChatCompletionRequest | None, text: str) -> ChatMessage:
    """Returns the assistant's message of a whole `text`; without `chat` all of the text is content."""
    choice = ChoiceState()
    for part, piece in _pieces(None if chat is None else _reader(pipeline, chat), [text], True):
        choice.take(Tokens(0, [piece], [], 0.0, part=part))
    said, thoughts = "".join(choice.texts), choice.texts_of("reasoning")
    forced = chat is not None and chat.tool_choice not in ("none", "auto", None)
    message = ChatMessage("assistant", said if said or forced or not choice.segments else None)
    calls = [
        ToolCall(pipeline.identity.fresh_id(), "function", function=FunctionCall(call.part.name, call.text))
        for call in choice.segments
        if call.part is not None and call.kind == "call"
    ]
    if calls:
        message.tool_calls = calls
    if thoughts and chat is not None and chat.include_reasoning:
        message.reasoning = "".join(thoughts)
    return message


def parsed_delta(
    pipeline: RequestPipeline, chat: ChatCompletionRequest, state: StreamState, ids: Sequence[int], ends: bool
) -> tuple[JsonObject, StreamState]:
    """Returns the message delta of the next tokens, and the state behind them. Reads all tokens again."""
    lengths = [*state.output_chunk_lens, *([len(ids)] if ids else [])]
    tokens = [*state.output_token_ids, *ids]
    pieces, texts, start = pipeline.tokenizer.pieces(tokens, False), [], 0
    for length in lengths:
        texts.append("".join(pieces[start : start + length]))
        start += length
    reader, seen = _reader(pipeline, chat), len(state.output_chunk_lens)
    for _ in _pieces(reader, texts[:seen], False):
        pass
    told, calls = {"content": "", "reasoning": ""}, dict[int, dict[str, Any]]()
    call_ids = list(state.last_tool_call_ids)
    for part, piece in _pieces(reader, texts[seen:], ends):
        if part is None or part.kind == "reasoning":
            told["content" if part is None else "reasoning"] += piece
        elif part.kind == "call" and not part.raw:
            if part.number not in calls:  # a call's first event has its id and name
                begins = part.number >= len(call_ids)
                if begins:
                    call_ids.append(f"chatcmpl-tool-{pipeline.identity.fresh_id()}")
                calls[part.number] = {
                    "id": call_ids[part.number] if begins else None,
                    "type": "function" if begins else None,
                    "index": part.number,
                    "function": {"name": part.name if begins else None, "arguments": ""},
                }
            calls[part.number]["function"]["arguments"] += piece
    delta: JsonObject = {
        "role": None if state.role_sent else "assistant",
        "content": told["content"] or None,
        "reasoning": (told["reasoning"] or None) if chat.include_reasoning else None,
    }
    if calls:
        delta["tool_calls"] = list(calls.values())
    return delta, replace(
        state,
        output_token_ids=tokens,
        output_chunk_lens=lengths,
        role_sent=True,
        tools_streamed=state.tools_streamed or bool(calls),
        last_tool_call_ids=call_ids,
    )


def logprobs_of(tokenizer: Tokenizer, logprobs: Logprobs | None, context: Sequence[int]) -> Entry | None:
    """Returns a chat's log probabilities; `context`: the token ids before the first one."""
    if logprobs is None or logprobs.content is None:
        return None if logprobs is None else {"content": None}
    before, entries = list(context), []

    def text_of(token_id: int) -> str:
        """Returns a token's text; of one that ends a character, the whole character, and else nothing."""
        [text] = tokenizer.token_texts([token_id])
        if not text.endswith(BROKEN):
            return text
        known = before[-CONTEXT:]
        for count in range(1, len(known) + 1):
            whole = tokenizer.decode([*known[-count:], token_id], False)
            if not whole.endswith(BROKEN):
                return whole[len(tokenizer.decode(known[-count:], False).rstrip(BROKEN)) :]
        return ""

    for entry in logprobs.content:
        named: list[Entry] = []
        for it in (entry, *entry.top_logprobs):
            text = text_of(it.token_id)
            named.append({"token": text, "logprob": it.logprob, "bytes": list(text.encode())})
        entries.append({**named[0], "top_logprobs": named[1:]})
        before.append(entry.token_id)
    return {"content": entries}


def completion_logprobs(found: Entry | None, offset: int) -> Entry | None:
    """Converts those of a chat to a completion's lists; `offset`: characters before the first token."""
    if found is None:
        return None
    entries, offsets = found["content"] or (), []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    tops = [{it["token"]: it["logprob"] for it in entry["top_logprobs"]} for entry in entries]
    return {
        "text_offset": offsets,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "tokens": [entry["token"] for entry in entries],
        "top_logprobs": [top or None for top in tops],
    }


def routes(pipeline: RequestPipeline) -> list[Route]:
    tools = pipeline.settings.tools
    parses = pipeline.limits.reasons or bool(tools.tool_call_parser and tools.enable_auto_tool_choice)

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderChatRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_chunk(pipeline, asked, True, parses))
        return json_response(_chat(pipeline, asked, parses))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderCompletionRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_chunk(pipeline, asked, False, False))
        return json_response(_completion(pipeline, asked))

    return [
        post("/v1/chat/completions/derender", derender_chat),
        post("/v1/completions/derender", derender_completion),
    ]


def _chat(pipeline: RequestPipeline, asked: DerenderChatRequest, parses: bool) -> JsonObject:
    answer, chat = asked.generate_response, asked.chat_request
    _check_answers(pipeline, [answer], [asked.prompt_token_ids])
    if parses and chat is None:
        raise bad_request(NEEDS_REQUEST)
    choices = []
    for choice in answer.choices:
        ids = _ids(choice)
        text = pipeline.tokenizer.decode(ids, not parses and (chat is None or chat.skip_special_tokens))
        choices.append(
            {
                "index": choice.index,
                "message": chat_message(pipeline, chat if parses else None, text),
                "logprobs": logprobs_of(pipeline.tokenizer, choice.logprobs, ()),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": ids if _shows_ids(chat, parses) else None,
                "routed_experts": None,
            }
        )
    return {
        **_head(pipeline, answer.request_id, "chat.completion", asked.model),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(asked.prompt_tokens or 0, answer.choices),
        "prompt_logprobs": answer.prompt_logprobs,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": answer.kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": answer.metrics,
    }


def _completion(pipeline: RequestPipeline, asked: DerenderCompletionRequest) -> JsonObject:
    answers, request, tokenizer = asked.generate_responses, asked.completion_request, pipeline.tokenizer
    if not answers:
        raise bad_request("generate_responses must not be empty")
    _check_answers(pipeline, answers, asked.prompt_token_ids or ())
    first, skips = answers[0], request is None or request.skip_special_tokens
    everywhere = all(answer.kv_transfer_params == first.kv_transfer_params for answer in answers)
    given = [choice for answer in answers for choice in answer.choices]
    choices = []
    for index, choice in enumerate(given):
        choices.append(
            {
                "index": index,
                "text": tokenizer.decode(_ids(choice), skips),
                "logprobs": completion_logprobs(logprobs_of(tokenizer, choice.logprobs, ()), 0),
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
        )
    return {
        **_head(pipeline, first.request_id, "text_completion", asked.model),
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(sum(asked.prompt_tokens or ()), given),
        "kv_transfer_params": first.kv_transfer_params if everywhere else None,
        "ec_transfer_params": None,
        "metrics": first.metrics if len(answers) == 1 else None,
    }


def _chunk(
    pipeline: RequestPipeline, asked: DerenderStreamRequest, is_chat: bool, parses: bool
) -> JsonObject:
    """Returns the chunk of one event, and the state behind it."""
    event, state, chat = asked.generate_chunk, asked.stream_state, asked.chat_request if is_chat else None
    if parses and (chat is None or asked.prompt_token_ids is None):
        raise bad_request(NEEDS_REQUEST if chat is None else NEEDS_PROMPT)
    _check_event(pipeline, asked)
    request = chat if is_chat else asked.completion_request
    window = Window(pipeline.tokenizer, not parses and (request is None or request.skip_special_tokens))
    if state is None:
        known = asked.prompt_token_ids or event.prompt_token_ids
        state = StreamState() if parses else window.begin(known)
    choices = []
    for choice in event.choices:
        ids, finish, before = choice.token_ids or [], choice.finish_reason, state
        shown: JsonObject = {"index": choice.index}
        if chat is not None and parses:
            shown["delta"], state = parsed_delta(pipeline, chat, state, ids, finish is not None)
            shown["logprobs"] = None
            if finish is not None and state.tools_streamed and isinstance(chat.tool_choice, str | None):
                finish = "tool_calls"
        else:
            text, state = window.read(state, ids)
            context = before.logprob_context_token_ids
            logprobs = logprobs_of(pipeline.tokenizer, choice.logprobs, context)
            if is_chat:
                role = None if before.role_sent else "assistant"
                shown["delta"] = {"role": role, "content": text or None, "reasoning": None}
                shown["logprobs"] = logprobs
                state = replace(state, role_sent=True)
            else:
                offset = before.logprob_text_offset
                shown["text"] = text
                shown["logprobs"] = completion_logprobs(logprobs, offset)
                state = replace(state, logprob_text_offset=offset + len(text))
        shown |= {"finish_reason": finish, "stop_reason": choice.stop_reason}
        if not is_chat:
            shown["prompt_token_ids"] = None
        shown["token_ids"] = choice.token_ids if _shows_ids(chat, parses) else None
        choices.append(shown)
    kind = "chat.completion.chunk" if is_chat else "text_completion"
    usage, counted = None, event.usage
    if counted is not None:
        prompt = counted.prompt_tokens if asked.prompt_tokens is None else asked.prompt_tokens
        tokens = counted.completion_tokens or 0
        usage = Usage(prompt, prompt + tokens, tokens, None, None)
    chunk: JsonObject = {
        **_head(pipeline, event.request_id, kind, asked.model),
        "choices": choices,
        "usage": usage,
        "system_fingerprint": None,
        **({"prompt_token_ids": None, "prompt_text": None} if is_chat else {}),
        "metrics": event.metrics,
    }
    return {"chunk": chunk, "stream_state": state}


def _head(pipeline: RequestPipeline, request_id: str, kind: str, model: str | None) -> JsonObject:
    return {
        "id": request_id or pipeline.identity.fresh_id(),
        "object": kind,
        "created": pipeline.identity.now_s(),
        "model": model or pipeline.models.names[0],
    }


def _usage(prompt_tokens: int, choices: Sequence[RenderedChoice]) -> Usage:
    tokens = sum(len(choice.token_ids or ()) for choice in choices)
    return Usage(prompt_tokens, prompt_tokens + tokens, tokens, None, None)


def _shows_ids(chat: ChatCompletionRequest | None, parses: bool) -> bool:
    return chat is not None and bool(chat.return_token_ids) and (not parses or chat.include_reasoning)


def _ids(choice: RenderedChoice) -> list[int]:
    if not choice.token_ids:
        raise bad_request(f"choice {choice.index} has no token_ids")
    return choice.token_ids


def _check_answers(
    pipeline: RequestPipeline, answers: Sequence[GenerateAnswer], prompts: Sequence[Sequence[int] | None]
) -> None:
    """Raises ApiError 400 for more than a server of this context could have returned."""
    most, limits = pipeline.limits.max_model_len, pipeline.limits
    if max(len(answers), *(len(answer.choices) for answer in answers)) > MAX_CHOICES:
        raise bad_request(f"more than {MAX_CHOICES} answers or choices")
    for answer in answers:
        for choice in answer.choices:
            entries = (choice.logprobs and choice.logprobs.content) or ()
            if max(len(choice.token_ids or ()), len(entries)) > most:
                raise bad_request(f"choice {choice.index} exceeds max_model_len, {most}")
            widest = max((len(entry.top_logprobs) for entry in entries), default=0)
            if limits.max_logprobs >= 0 and widest > limits.max_logprobs:
                raise bad_request(f"top_logprobs of choice {choice.index} exceed {limits.max_logprobs}")
        if len(answer.prompt_logprobs or ()) > most:
            raise bad_request(f"prompt_logprobs exceed max_model_len, {most}")
    if max((len(ids or ()) for ids in prompts), default=0) > most:
        raise bad_request(f"prompt_token_ids exceed max_model_len, {most}")


def _check_event(pipeline: RequestPipeline, asked: DerenderStreamRequest) -> None:
    """Checks for one choice, and for no more tokens than the context holds. ApiError 400."""
    if (choices := len(asked.generate_chunk.choices)) > 1:
        raise bad_request(f"an event has one choice at most, got {choices}")
    state, most = asked.stream_state, pipeline.limits.max_model_len
    tokens = sum(len(choice.token_ids or ()) for choice in asked.generate_chunk.choices)
    tokens += len(asked.prompt_token_ids or ()) + len(state.output_token_ids if state else ())
    if tokens > most:
        raise bad_request(f"{tokens} tokens exceed max_model_len, {most}")
