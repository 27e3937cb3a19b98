"""Both /derender routes: the token ids of a generate answer as a chat or a text completion.

The server keeps nothing between the events of a stream: the client sends back the state that it was told.
Without a parser that is a window at the end of the text; a parser reads all tokens once more at each event.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from app.api.frontend import Frontend
from app.api.generate.text import Window, chat_delta, chat_message, completion_logprobs, logprobs_of, seeded
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response, json_response
from app.http.route import Route, post
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import JsonObject
from app.protocol.common import Usage
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import decode_first
from app.protocol.derender import (
    Choice,
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderStreamRequest,
    GenerateAnswer,
    GenerateEvent,
    StreamState,
)
from app.protocol.validation.sampling import MAX_CHOICES

NEEDS_REQUEST = "chat_request is needed beside a parser: the reply would show its markup."
NEEDS_PROMPT = "prompt_token_ids are needed beside a parser: they tell whether thoughts have begun."


def routes(frontend: Frontend) -> list[Route]:

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion, or one chunk of it, that token ids stand for."""
        kinds = (DerenderStreamRequest, DerenderChatRequest)
        asked = decode_first(frontend.body.read(context), context.content_type, kinds)
        frontend.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_chat_chunk(frontend, asked))
        return json_response(_chat(frontend, asked))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion, or one chunk of it, that token ids stand for."""
        kinds = (DerenderStreamRequest, DerenderCompletionRequest)
        asked = decode_first(frontend.body.read(context), context.content_type, kinds)
        frontend.models.resolve(asked.model)
        if isinstance(asked, DerenderStreamRequest):
            return json_response(_completion_chunk(frontend, asked))
        return json_response(_completion(frontend, asked))

    return [
        post("/v1/chat/completions/derender", derender_chat),
        post("/v1/completions/derender", derender_completion),
    ]


def _parses(frontend: Frontend) -> bool:
    """A parser of thoughts or tool calls stands behind the model."""
    tools = frontend.builder.settings.tools
    return frontend.limits.reasons or bool(tools.tool_call_parser and tools.enable_auto_tool_choice)


def _chat(frontend: Frontend, asked: DerenderChatRequest) -> JsonObject:
    answer, chat = asked.generate_response, asked.chat_request
    _check_answers(frontend, [answer])
    _check_prompts(frontend, [asked.prompt_token_ids])
    parses = _parses(frontend)
    if parses and chat is None:
        raise bad_request(NEEDS_REQUEST)
    choices = [_chat_choice(frontend, choice, chat, parses) for choice in answer.choices]
    return {
        **_head(frontend, answer.request_id, "chat.completion", asked.model),
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
    frontend: Frontend, choice: Choice, chat: ChatCompletionRequest | None, parses: bool
) -> JsonObject:
    ids, parsed = _ids(choice), chat if parses else None
    text = frontend.tokenizer.decode(ids, _skips(parses, chat))
    shows = chat is not None and chat.return_token_ids and (parsed is None or chat.include_reasoning)
    return {
        "index": choice.index,
        "message": chat_message(frontend, parsed, text),
        "logprobs": choice.logprobs and logprobs_of(frontend.tokenizer, choice.logprobs, ()),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": ids if shows else None,
        "routed_experts": None,
    }


def _chat_chunk(frontend: Frontend, asked: DerenderStreamRequest) -> JsonObject:
    event, chat, state = asked.generate_chunk, asked.chat_request, asked.stream_state
    parses = _parses(frontend)
    if parses and (chat is None or asked.prompt_token_ids is None):
        raise bad_request(NEEDS_REQUEST if chat is None else NEEDS_PROMPT)
    _check_event(frontend, asked)
    parsed = chat if parses else None
    window = Window(frontend.tokenizer, _skips(parses, chat))
    if state is None:
        state = StreamState() if parses else seeded(window, asked.prompt_token_ids or event.prompt_token_ids)
    choices = []
    for choice in event.choices:
        ids = choice.token_ids or []
        before, finish = state, choice.finish_reason
        delta, state = chat_delta(frontend, parsed, window, state, ids, finish is not None)
        if parsed is not None and finish is not None and state.tools_streamed:
            finish = finish if _names_tool(parsed) else "tool_calls"
        shows = chat is not None and chat.return_token_ids and (parsed is None or chat.include_reasoning)
        logprobs = None
        if parsed is None and choice.logprobs is not None:
            logprobs = logprobs_of(frontend.tokenizer, choice.logprobs, before.logprob_context_token_ids)
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
        **_head(frontend, event.request_id, "chat.completion.chunk", asked.model),
        "choices": choices,
        "usage": _event_usage(asked),
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": event.metrics,
    }
    return {"chunk": chunk, "stream_state": state}


def _completion(frontend: Frontend, asked: DerenderCompletionRequest) -> JsonObject:
    answers, request = asked.generate_responses, asked.completion_request
    if not answers:
        raise bad_request("generate_responses must not be empty")
    _check_answers(frontend, answers)
    _check_prompts(frontend, asked.prompt_token_ids or ())
    first = answers[0]
    everywhere = all(answer.kv_transfer_params == first.kv_transfer_params for answer in answers)
    choices = [choice for answer in answers for choice in answer.choices]
    skips = _skips(False, request)
    return {
        **_head(frontend, first.request_id, "text_completion", asked.model),
        "choices": [_text_choice(frontend, index, choice, skips) for index, choice in enumerate(choices)],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": _usage(sum(asked.prompt_tokens or ()), choices),
        "kv_transfer_params": first.kv_transfer_params if everywhere else None,
        "ec_transfer_params": None,
        "metrics": first.metrics if len(answers) == 1 else None,
    }


def _text_choice(frontend: Frontend, index: int, choice: Choice, skips: bool) -> JsonObject:
    ids, tokenizer, logprobs = _ids(choice), frontend.tokenizer, None
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


def _completion_chunk(frontend: Frontend, asked: DerenderStreamRequest) -> JsonObject:
    event, state, tokenizer = asked.generate_chunk, asked.stream_state, frontend.tokenizer
    _check_prompts(frontend, [asked.prompt_token_ids])
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
        **_head(frontend, event.request_id, "text_completion", asked.model),
        "choices": choices,
        "usage": _event_usage(asked),
        "system_fingerprint": None,
        "metrics": event.metrics,
    }
    return {"chunk": chunk, "stream_state": state}


def _head(frontend: Frontend, request_id: str, kind: str, model: str | None) -> JsonObject:
    return {
        "id": request_id or frontend.identity.fresh_id(),
        "object": kind,
        "created": frontend.identity.now_s(),
        "model": model or frontend.models.names[0],
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
    """Special tokens are no part of the text; a parser has to see them."""
    return not parses and (request is None or request.skip_special_tokens)


def _names_tool(chat: ChatCompletionRequest) -> bool:
    return not isinstance(chat.tool_choice, str | None)


def _ids(choice: Choice) -> list[int]:
    if not choice.token_ids:
        raise bad_request(f"choice {choice.index} has no token_ids")
    return choice.token_ids


def _check_answers(frontend: Frontend, answers: Sequence[GenerateAnswer]) -> None:
    """No more than a server of this context could have told. ApiError 400."""
    most, limits = frontend.limits.max_model_len, frontend.limits
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


def _check_prompts(frontend: Frontend, prompts: Sequence[Sequence[int] | None]) -> None:
    if max((len(ids or ()) for ids in prompts), default=0) > (most := frontend.limits.max_model_len):
        raise bad_request(f"prompt_token_ids exceed max_model_len, {most}")


def _check_single(event: GenerateEvent) -> None:
    if len(event.choices) > 1:
        raise bad_request(f"an event has one choice at most, got {len(event.choices)}")


def _check_event(frontend: Frontend, asked: DerenderStreamRequest) -> None:
    """One choice, and no more tokens than the context has."""
    _check_single(asked.generate_chunk)
    state, most = asked.stream_state, frontend.limits.max_model_len
    tokens = sum(len(choice.token_ids or ()) for choice in asked.generate_chunk.choices)
    tokens += len(asked.prompt_token_ids or ()) + len(state.output_token_ids if state else ())
    if tokens > most:
        raise bad_request(f"{tokens} tokens exceed max_model_len, {most}")
