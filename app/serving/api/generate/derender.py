"""The two /derender routes:

whole answers of token ids as chats or completions, and events of streams.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from app.engine.core.outputs import Piece
from app.serving.api.generate.derender_parts import (
    chat_logprobs,
    completion_logprobs,
    reader_of,
    shown_ids,
)
from app.serving.api.generate.derender_stream import EventDerenderer
from app.serving.api.pipeline import RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, post
from app.serving.protocol import chat as wire
from app.serving.protocol import common, derender
from app.serving.protocol.chat import ChatCompletionRequest
from app.serving.protocol.completions import Completion, CompletionChoice


def routes(pipeline: RequestPipeline) -> list[Route]:
    tokenizer = pipeline.tokenizer
    parses = pipeline.limits.parses
    events = EventDerenderer(pipeline)

    def derender_chat(context: RequestContext) -> Response:
        """The chat completion of token ids; with `stream` the event of a chat, and the state behind
        it.
        """
        if is_event(pipeline, context):
            return json_response(
                events.chat_event(pipeline.decode(context, derender.DerenderChatStreamRequest))
            )
        asked = pipeline.decode(context, derender.DerenderChatRequest)
        answer, chat, choices = asked.generate_response, asked.chat_request, list[wire.ChatChoice]()
        head = _head(
            pipeline, asked.model, [answer], asked.prompt_tokens or 0, [asked.prompt_token_ids]
        )
        if parses and chat is None:
            raise bad_request(
                "chat_request is needed beside a parser: the reply would show its markup."
            )
        shows_ids = chat and chat.return_token_ids and (not parses or chat.include_reasoning)
        for choice in answer.choices:
            skips = not parses and (chat is None or chat.skip_special_tokens)
            ids_read: Sequence[int] = choice.token_ids or ()
            if parses:
                ids_read = shown_ids(pipeline, ids_read, choice.finish_reason)
            read = reader_of(pipeline, chat, asked.prompt_token_ids or answer.prompt_token_ids)
            message = _message(pipeline, chat, read(tokenizer.decode(ids_read, skips), True))
            entries = chat_logprobs(pipeline, choice.logprobs)
            ids = choice.token_ids if shows_ids else None
            logprobs = None if entries is None else common.LogprobContent(entries)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(wire.ChatChoice(choice.index, message, logprobs, *reasons, ids))
        same = {
            name: getattr(answer, name)
            for name in ("prompt_logprobs", "kv_transfer_params", "metrics")
        }
        return json_response(wire.ChatCompletion(**head, choices=choices, **same))

    def derender_completion(context: RequestContext) -> Response:
        """The text completion of token ids; with `stream` the event of one, and the state behind
        it.

        The choices of all whole answers are numbered on.
        """
        if is_event(pipeline, context):
            event = pipeline.decode(context, derender.DerenderCompletionStreamRequest)
            return json_response(events.completion_event(event))
        asked = pipeline.decode(context, derender.DerenderCompletionRequest)
        answers, request, choices = asked.generate_responses, asked.completion_request, []
        if not answers:
            raise bad_request("generate_responses must not be empty")
        tokens, prompts = sum(asked.prompt_tokens or ()), asked.prompt_token_ids or ()
        head = _head(pipeline, asked.model, answers, tokens, prompts)
        for index, choice in enumerate(chain.from_iterable(answer.choices for answer in answers)):
            skips = request is None or request.skip_special_tokens
            text = tokenizer.decode(choice.token_ids or (), skips)
            logprobs = completion_logprobs(pipeline, choice.logprobs)
            reasons = choice.finish_reason or "stop", choice.stop_reason
            choices.append(CompletionChoice(index, text, logprobs, *reasons, None, None, None))
        transfers = [answer.kv_transfer_params for answer in answers]
        same: dict[str, Any] = {
            "kv_transfer_params": transfers[0]
            if transfers.count(transfers[0]) == len(answers)
            else None,
            "metrics": answers[0].metrics if len(answers) == 1 else None,
        }
        return json_response(Completion(**head, choices=choices, **same))

    generated = {"request_id": "x", "choices": [{"index": 0, "token_ids": [5, 6]}]}
    chat_docs = RouteDocs(
        body=(derender.DerenderChatRequest, derender.DerenderChatStreamRequest),
        example={"generate_response": generated},
    )
    completion_docs = RouteDocs(
        body=(derender.DerenderCompletionRequest, derender.DerenderCompletionStreamRequest),
        example={"generate_responses": [generated]},
    )
    return [
        post("/v1/chat/completions/derender", derender_chat, docs=chat_docs),
        post("/v1/completions/derender", derender_completion, docs=completion_docs),
    ]


def is_event(pipeline: RequestPipeline, context: RequestContext) -> bool:
    """Returns whether the body has `stream` true. A body that is no JSON object is none."""
    try:
        body = msgspec.json.decode(pipeline.body.read(context), type=derender.StreamSwitch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return body.stream is True


def _head(
    pipeline: RequestPipeline,
    model: str | None,
    answers: Sequence[derender.GenerateOutput],
    prompt_tokens: int,
    prompts: Sequence[Sequence[int] | None],
) -> dict[str, Any]:
    """Returns the first fields of an answer. ApiError 404 for a wrong model.

    ApiError 400 without tokens, or for more than a server of this context could have returned.
    """
    shown, most = pipeline.models.resolve(model), pipeline.limits.max_model_len
    given = [(choice, choice.token_ids or ()) for answer in answers for choice in answer.choices]
    if any(len(ids or ()) > most for ids in (*prompts, *(ids for _, ids in given))):
        raise bad_request(f"there are more tokens than max_model_len, {most}")
    for choice, ids in given:
        if not ids:
            raise bad_request(f"choice {choice.index} has no token_ids")
    tokens = sum(len(ids) for _, ids in given)
    return {
        "id": answers[0].request_id or pipeline.identity.fresh_id(),
        "created": pipeline.identity.now_s(),
        "model": model or shown,
        "system_fingerprint": None,
        "usage": common.Usage(prompt_tokens, prompt_tokens + tokens, tokens, None, None),
    }


def _message(
    pipeline: RequestPipeline, chat: ChatCompletionRequest | None, pieces: Sequence[Piece]
) -> wire.ChatMessage:
    content, raw, reasoning, calls = "", "", "", dict[int, tuple[str, str]]()
    for part, piece in pieces:
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
