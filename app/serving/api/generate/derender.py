"""Both /derender routes: the token ids of whole generate answers as a chat or a text completion."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from app.engine.parsing import Read, hermes, listed, plain, thoughts
from app.serving.api.logprobs import token_bytes
from app.serving.api.pipeline import RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, post
from app.serving.protocol import chat as wire
from app.serving.protocol import common
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.completions import Completion, CompletionChoice
from app.serving.protocol.generate import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    GenerateOutput,
    Logprobs,
    RenderedChoice,
)


def routes(pipeline: RequestPipeline) -> list[Route]:
    tokenizer, parses = pipeline.tokenizer, pipeline.limits.parses

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion of token ids."""
        asked = pipeline.decode(context, DerenderChatRequest)
        answer, chat, choices = asked.generate_response, asked.chat_request, list[wire.ChatChoice]()
        head = _head(pipeline, [answer], asked.model, "chat.completion", asked.prompt_tokens or 0)
        _check(pipeline, [asked.prompt_token_ids], answer.choices)
        if parses and chat is None:
            raise bad_request("chat_request is needed beside a parser: the reply would show its markup.")
        shows_ids = chat and chat.return_token_ids and (not parses or chat.include_reasoning)
        for choice in answer.choices:
            skips = not parses and (chat is None or chat.skip_special_tokens)
            message = _message(pipeline, chat, tokenizer.decode(choice.token_ids or (), skips))
            entries, ids = _named(pipeline, choice.logprobs), choice.token_ids if shows_ids else None
            logprobs = None if entries is None else common.LogprobContent(entries)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(wire.ChatChoice(choice.index, message, logprobs, *reasons, ids))
        same = {name: getattr(answer, name) for name in ("prompt_logprobs", "kv_transfer_params", "metrics")}
        return json_response(wire.ChatCompletion(**head, choices=choices, **same))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion of token ids: the choices of all answers, numbered on."""
        asked = pipeline.decode(context, DerenderCompletionRequest)
        answers, request, choices = asked.generate_responses, asked.completion_request, []
        if not answers:
            raise bad_request("generate_responses must not be empty")
        tokens, given = sum(asked.prompt_tokens or ()), [it for answer in answers for it in answer.choices]
        head = _head(pipeline, answers, asked.model, "text_completion", tokens)
        _check(pipeline, asked.prompt_token_ids or (), given)
        for index, choice in enumerate(given):
            skips = request is None or request.skip_special_tokens
            text, logprobs = tokenizer.decode(choice.token_ids or (), skips), _lists(pipeline, choice)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(CompletionChoice(index, text, logprobs, *reasons, None, None, None))
        transfers = [answer.kv_transfer_params for answer in answers]
        same: dict[str, Any] = {
            "kv_transfer_params": transfers[0] if transfers.count(transfers[0]) == len(answers) else None,
            "metrics": answers[0].metrics if len(answers) == 1 else None,
        }
        return json_response(Completion(**head, choices=choices, **same))

    return [
        post("/v1/chat/completions/derender", derender_chat),
        post("/v1/completions/derender", derender_completion),
    ]


def _head(
    pipeline: RequestPipeline, answers: Sequence[GenerateOutput], model: str | None, kind: str, prompt: int
) -> dict[str, Any]:
    """Returns the first fields of an answer to a prompt of so many tokens. ApiError 404 for a wrong model."""
    tokens = sum(len(choice.token_ids or ()) for answer in answers for choice in answer.choices)
    shown = pipeline.models.resolve(model)
    return {
        "id": answers[0].request_id or pipeline.identity.fresh_id(),
        "object": kind,
        "created": pipeline.identity.now_s(),
        "model": model or shown,
        "system_fingerprint": None,
        "usage": common.Usage(prompt, prompt + tokens, tokens, None, None),
    }


def _check(
    pipeline: RequestPipeline, prompts: Sequence[Sequence[int] | None], choices: Sequence[RenderedChoice]
) -> None:
    """Raises ApiError 400 without tokens, or for more than a server of this context could have returned."""
    most = pipeline.limits.max_model_len
    if any(len(ids or ()) > most for ids in (*prompts, *(choice.token_ids for choice in choices))):
        raise bad_request(f"there are more tokens than max_model_len, {most}")
    for choice in choices:
        if not choice.token_ids:
            raise bad_request(f"choice {choice.index} has no token_ids")


def _message(pipeline: RequestPipeline, chat: ChatCompletionRequest | None, text: str) -> wire.ChatMessage:
    content, raw, reasoning, calls = "", "", "", dict[int, tuple[str, str]]()
    for part, piece in _reader(pipeline, chat)(text, True):
        if part is None:
            content += piece
        elif part.kind == "reasoning":
            reasoning += piece
        elif part.raw:
            raw = part.raw  # the whole reply, where its last call is cut off
        else:
            calls[part.number] = part.name, calls.get(part.number, ("", ""))[1] + piece
    said, parses = raw or content, pipeline.limits.parses
    forced = chat is not None and parses and chat.tool_choice not in ("none", "auto", None)
    is_open = said or forced or not (calls or reasoning)
    message = wire.ChatMessage("assistant", said if is_open else None)
    if calls and not raw:
        made = [(pipeline.identity.fresh_id(), wire.FunctionCall(*call)) for call in calls.values()]
        message.tool_calls = [wire.ToolCall(id, "function", function=call) for id, call in made]
    if reasoning and chat is not None and chat.include_reasoning:
        message.reasoning = reasoning
    return message


def _reader(pipeline: RequestPipeline, chat: ChatCompletionRequest | None) -> Read:
    if chat is None or not pipeline.limits.parses:
        return plain
    read: Read = plain
    if chat.tools and chat.tool_choice != "none":
        read = listed if pipeline.settings.tools.tool_call_parser == "llama3_json" else hermes
    return partial(thoughts, then=read) if pipeline.limits.reasons else read


def _named(pipeline: RequestPipeline, logprobs: Logprobs | None) -> list[common.ChatLogprob] | None:
    if logprobs is None or logprobs.content is None:
        return None
    entries = []
    for entry in logprobs.content:
        candidates = (entry, *entry.top_logprobs)
        texts = pipeline.tokenizer.token_texts([it.token_id for it in candidates])
        own, *tops = [
            common.ChatAlternative(text, it.logprob, token_bytes(text))
            for text, it in zip(texts, candidates, strict=True)
        ]
        entries.append(common.ChatLogprob(own.token, own.logprob, own.bytes, tops))
    return entries


def _lists(pipeline: RequestPipeline, choice: RenderedChoice) -> common.CompletionLogprobs | None:
    if (entries := _named(pipeline, choice.logprobs)) is None:
        return None
    tokens = [entry.token for entry in entries]
    tops = [{it.token: it.logprob for it in entry.top_logprobs} or None for entry in entries]
    offsets = list(accumulate(map(len, tokens), initial=0))[: len(tokens)]
    return common.CompletionLogprobs(offsets, [entry.logprob for entry in entries], tokens, tops)
