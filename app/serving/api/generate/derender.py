"""Both /derender routes: the token ids of a generate answer as a chat or a text completion.

The server keeps nothing between the events of a stream: the client sends back the state that it received.
Without a parser the state is a window at the end of the text. A parser reads all tokens again at each event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from app.engine.core.outputs import Part, PartReader, Tokens
from app.engine.parsing.readers import HermesReader, ListedReader, ThoughtReader
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.writer import ChoiceState
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol.chat import ChatCompletionRequest, ChatMessage, FunctionCall, ToolCall
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import Usage
from app.serving.protocol.completions import CompletionRequest
from app.serving.protocol.decoding import decode_first
from app.serving.protocol.derender import (
    Candidate,
    Choice,
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderStreamRequest,
    GenerateAnswer,
    GenerateEvent,
    Logprobs,
    StreamState,
)
from app.serving.protocol.validation import MAX_CHOICES
from app.text import Tokenizer

SEED = 5
"""Tokens of the prompt that precede a reply's first token in decoding."""
CONTEXT = 4
"""Tokens that may hold the beginning of a character which a later token ends."""
BROKEN = "\ufffd"


class Window:
    """Decodes the next tokens of a text whose last few tokens are known."""

    def __init__(self, tokenizer: Tokenizer, skips: bool) -> None:
        """With `skips` the text leaves out special tokens."""
        self._tokenizer, self._skips = tokenizer, skips

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


def seeded(window: Window, prompt_ids: Sequence[int] | None) -> StreamState:
    tokens = window.strings((prompt_ids or ())[-SEED - 2 :])
    return StreamState(prev_tokens=tokens, prefix_offset=max(len(tokens) - SEED, 0), read_offset=len(tokens))


def _reader(pipeline: RequestPipeline, chat: ChatCompletionRequest) -> PartReader | None:
    """Returns the reader that separates thoughts and calls from a reply to `chat`; None without parsers."""
    calls: PartReader | None = None
    if chat.tools and chat.tool_choice != "none":
        as_llama = pipeline.builder.settings.tools.tool_call_parser == "llama3_json"
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


def chat_delta(
    pipeline: RequestPipeline,
    chat: ChatCompletionRequest | None,
    window: Window,
    state: StreamState,
    ids: Sequence[int],
    ends: bool,
) -> tuple[JsonObject, StreamState]:
    """Returns the message delta of the next tokens, and the state behind them."""
    role = None if state.role_sent else "assistant"
    if chat is None:
        text, state = window.read(state, ids)
        delta: JsonObject = {"role": role, "content": text or None, "reasoning": None}
        return delta, replace(state, role_sent=True)
    lengths = [*state.output_chunk_lens, *([len(ids)] if ids else [])]
    tokens = [*state.output_token_ids, *ids]
    pieces, texts, start = pipeline.tokenizer.pieces(tokens, False), [], 0
    for length in lengths:
        texts.append("".join(pieces[start : start + length]))
        start += length
    reader = _reader(pipeline, chat)
    new = texts[len(state.output_chunk_lens) :]
    for _ in _pieces(reader, texts[: len(state.output_chunk_lens)], False):
        pass
    told, calls, call_ids = (
        {"content": "", "reasoning": ""},
        dict[int, JsonObject](),
        list(state.last_tool_call_ids),
    )
    for part, piece in _pieces(reader, new, ends):
        if part is None or part.kind == "reasoning":
            told["content" if part is None else "reasoning"] += piece
        elif part.kind == "call" and not part.raw:
            _add_call(pipeline, calls, call_ids, part, piece)
    delta = {"role": role, "content": told["content"] or None}
    delta["reasoning"] = (told["reasoning"] or None) if chat.include_reasoning else None
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


def _add_call(
    pipeline: RequestPipeline, calls: dict[int, JsonObject], call_ids: list[str], part: Part, piece: str
) -> None:
    number = part.number
    if number not in calls:
        begins = number >= len(call_ids)
        if begins:
            call_ids.append(f"chatcmpl-tool-{pipeline.identity.fresh_id()}")
        calls[number] = {
            "id": call_ids[number] if begins else None,
            "type": "function" if begins else None,
            "index": number,
            "function": {"name": part.name if begins else None, "arguments": ""},
        }
    function = calls[number]["function"]
    assert isinstance(function, dict)
    function["arguments"] += piece


def logprobs_of(tokenizer: Tokenizer, logprobs: Logprobs, context: Sequence[int]) -> JsonObject:
    if logprobs.content is None:
        return {"content": None}
    before, entries = list(context), []
    for entry in logprobs.content:
        named = [_named(tokenizer, it, before) for it in (entry, *entry.top_logprobs)]
        entries.append({**named[0], "top_logprobs": named[1:]})
        before.append(entry.token_id)
    return {"content": entries}


def _named(tokenizer: Tokenizer, it: Candidate, before: Sequence[int]) -> JsonObject:
    [text] = tokenizer.token_texts([it.token_id])
    if text.endswith(BROKEN):
        text = _completed(tokenizer, it.token_id, before[-CONTEXT:])
    return {"token": text, "logprob": it.logprob, "bytes": list(text.encode())}


def _completed(tokenizer: Tokenizer, token_id: int, before: Sequence[int]) -> str:
    """Returns the rest of a character that a token ends; empty when it ends none."""
    for count in range(1, len(before) + 1):
        whole = tokenizer.decode([*before[-count:], token_id], False)
        if not whole.endswith(BROKEN):
            return whole[len(tokenizer.decode(before[-count:], False).rstrip(BROKEN)) :]
    return ""


def completion_logprobs(found: JsonObject, offset: int) -> JsonObject:
    entries = found["content"]
    lists: dict[str, list[object]] = {
        "text_offset": [],
        "token_logprobs": [],
        "tokens": [],
        "top_logprobs": [],
    }
    for entry in entries if isinstance(entries, list) else ():
        lists["text_offset"].append(offset)
        lists["tokens"].append(entry["token"])
        lists["token_logprobs"].append(entry["logprob"])
        top = {it["token"]: it["logprob"] for it in entry["top_logprobs"]}
        lists["top_logprobs"].append(top or None)
        offset += len(entry["token"])
    return {**lists}


NEEDS_REQUEST = "chat_request is needed beside a parser: the reply would show its markup."
NEEDS_PROMPT = "prompt_token_ids are needed beside a parser: they tell whether thoughts have begun."


def routes(pipeline: RequestPipeline) -> list[Route]:

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderChatRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_chat_chunk(pipeline, asked))
        return json_response(_chat(pipeline, asked))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion, or one of its chunks, for token ids."""
        kinds = (DerenderStreamRequest, DerenderCompletionRequest)
        asked = decode_first(pipeline.body.read(context), context.content_type, kinds)
        pipeline.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_completion_chunk(pipeline, asked))
        return json_response(_completion(pipeline, asked))

    return [
        post("/v1/chat/completions/derender", derender_chat),
        post("/v1/completions/derender", derender_completion),
    ]


def _parses(pipeline: RequestPipeline) -> bool:
    tools = pipeline.builder.settings.tools
    return pipeline.limits.reasons or bool(tools.tool_call_parser and tools.enable_auto_tool_choice)


def _chat(pipeline: RequestPipeline, asked: DerenderChatRequest) -> JsonObject:
    answer, chat = asked.generate_response, asked.chat_request
    _check_answers(pipeline, [answer])
    _check_prompts(pipeline, [asked.prompt_token_ids])
    parses = _parses(pipeline)
    if parses and chat is None:
        raise bad_request(NEEDS_REQUEST)
    choices = [_chat_choice(pipeline, choice, chat, parses) for choice in answer.choices]
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


def _chat_choice(
    pipeline: RequestPipeline, choice: Choice, chat: ChatCompletionRequest | None, parses: bool
) -> JsonObject:
    ids, parsed = _ids(choice), chat if parses else None
    text = pipeline.tokenizer.decode(ids, _skips(parses, chat))
    shows = chat is not None and chat.return_token_ids and (parsed is None or chat.include_reasoning)
    return {
        "index": choice.index,
        "message": chat_message(pipeline, parsed, text),
        "logprobs": choice.logprobs and logprobs_of(pipeline.tokenizer, choice.logprobs, ()),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": ids if shows else None,
        "routed_experts": None,
    }


def _chat_chunk(pipeline: RequestPipeline, asked: DerenderStreamRequest) -> JsonObject:
    event, chat, state = asked.generate_chunk, asked.chat_request, asked.stream_state
    parses = _parses(pipeline)
    if parses and (chat is None or asked.prompt_token_ids is None):
        raise bad_request(NEEDS_REQUEST if chat is None else NEEDS_PROMPT)
    _check_event(pipeline, asked)
    parsed = chat if parses else None
    window = Window(pipeline.tokenizer, _skips(parses, chat))
    if state is None:
        state = StreamState() if parses else seeded(window, asked.prompt_token_ids or event.prompt_token_ids)
    choices = []
    for choice in event.choices:
        ids = choice.token_ids or []
        before, finish = state, choice.finish_reason
        delta, state = chat_delta(pipeline, parsed, window, state, ids, finish is not None)
        if parsed is not None and finish is not None and state.tools_streamed:
            finish = finish if _names_tool(parsed) else "tool_calls"
        shows = chat is not None and chat.return_token_ids and (parsed is None or chat.include_reasoning)
        logprobs = None
        if parsed is None and choice.logprobs is not None:
            logprobs = logprobs_of(pipeline.tokenizer, choice.logprobs, before.logprob_context_token_ids)
        choices.append(
            {
                "index": choice.index,
                "delta": delta,
                "logprobs": logprobs,
                "finish_reason": finish,
                "stop_reason": choice.stop_reason,
                "token_ids": choice.token_ids if shows else None,
            }
        )
    chunk = {
        **_head(pipeline, event.request_id, "chat.completion.chunk", asked.model),
        "choices": choices,
        "usage": _event_usage(asked),
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": event.metrics,
    }
    return {"chunk": chunk, "stream_state": state}


def _completion(pipeline: RequestPipeline, asked: DerenderCompletionRequest) -> JsonObject:
    answers, request = asked.generate_responses, asked.completion_request
    if not answers:
        raise bad_request("generate_responses must not be empty")
    _check_answers(pipeline, answers)
    _check_prompts(pipeline, asked.prompt_token_ids or ())
    first = answers[0]
    everywhere = all(answer.kv_transfer_params == first.kv_transfer_params for answer in answers)
    choices = [choice for answer in answers for choice in answer.choices]
    skips = _skips(False, request)
    return {
        **_head(pipeline, first.request_id, "text_completion", asked.model),
        "choices": [_text_choice(pipeline, index, choice, skips) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(sum(asked.prompt_tokens or ()), choices),
        "kv_transfer_params": first.kv_transfer_params if everywhere else None,
        "ec_transfer_params": None,
        "metrics": first.metrics if len(answers) == 1 else None,
    }


def _text_choice(pipeline: RequestPipeline, index: int, choice: Choice, skips: bool) -> JsonObject:
    ids, tokenizer, logprobs = _ids(choice), pipeline.tokenizer, None
    if choice.logprobs is not None:
        logprobs = completion_logprobs(logprobs_of(tokenizer, choice.logprobs, ()), 0)
    return {
        "index": index,
        "text": tokenizer.decode(ids, skips),
        "logprobs": logprobs,
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _completion_chunk(pipeline: RequestPipeline, asked: DerenderStreamRequest) -> JsonObject:
    event, state, tokenizer = asked.generate_chunk, asked.stream_state, pipeline.tokenizer
    _check_prompts(pipeline, [asked.prompt_token_ids])
    _check_single(event)
    window = Window(tokenizer, _skips(False, asked.completion_request))
    if state is None:
        state = seeded(window, asked.prompt_token_ids or event.prompt_token_ids)
    choices = []
    for choice in event.choices:
        ids, logprobs, before = choice.token_ids or [], None, state
        text, state = window.read(state, ids)
        if choice.logprobs is not None:
            found = logprobs_of(tokenizer, choice.logprobs, before.logprob_context_token_ids)
            logprobs = completion_logprobs(found, before.logprob_text_offset)
        state = replace(state, logprob_text_offset=before.logprob_text_offset + len(text))
        choices.append(
            {
                "index": choice.index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        )
    chunk = {
        **_head(pipeline, event.request_id, "text_completion", asked.model),
        "choices": choices,
        "usage": _event_usage(asked),
        "system_fingerprint": None,
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


def _usage(prompt_tokens: int, choices: Sequence[Choice]) -> Usage:
    tokens = sum(len(choice.token_ids or ()) for choice in choices)
    return Usage(prompt_tokens, prompt_tokens + tokens, tokens, None, None)


def _event_usage(asked: DerenderStreamRequest) -> Usage | None:
    told = asked.generate_chunk.usage
    if told is None:
        return None
    prompt, tokens = asked.prompt_tokens, told.completion_tokens or 0
    prompt = told.prompt_tokens if prompt is None else prompt
    return Usage(prompt, prompt + tokens, tokens, None, None)


def _skips(parses: bool, request: ChatCompletionRequest | CompletionRequest | None) -> bool:
    """True when the text leaves out special tokens; a parser needs them."""
    return not parses and (request is None or request.skip_special_tokens)


def _names_tool(chat: ChatCompletionRequest) -> bool:
    return not isinstance(chat.tool_choice, str | None)


def _ids(choice: Choice) -> list[int]:
    if not choice.token_ids:
        raise bad_request(f"choice {choice.index} has no token_ids")
    return choice.token_ids


def _check_answers(pipeline: RequestPipeline, answers: Sequence[GenerateAnswer]) -> None:
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


def _check_prompts(pipeline: RequestPipeline, prompts: Sequence[Sequence[int] | None]) -> None:
    if max((len(ids or ()) for ids in prompts), default=0) > (most := pipeline.limits.max_model_len):
        raise bad_request(f"prompt_token_ids exceed max_model_len, {most}")


def _check_single(event: GenerateEvent) -> None:
    if len(event.choices) > 1:
        raise bad_request(f"an event has one choice at most, got {len(event.choices)}")


def _check_event(pipeline: RequestPipeline, asked: DerenderStreamRequest) -> None:
    """Checks for one choice, and for no more tokens than the context holds. ApiError 400."""
    _check_single(asked.generate_chunk)
    state, most = asked.stream_state, pipeline.limits.max_model_len
    tokens = sum(len(choice.token_ids or ()) for choice in asked.generate_chunk.choices)
    tokens += len(asked.prompt_token_ids or ()) + len(state.output_token_ids if state else ())
    if tokens > most:
        raise bad_request(f"{tokens} tokens exceed max_model_len, {most}")
