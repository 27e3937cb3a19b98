"""The two /derender routes: token ids as chats or completions, whole or in events of a stream."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import Piece
from app.core.protocol import chat as wire
from app.core.protocol import common
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.completions import Completion, CompletionChoice
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, post
from app.extensions.disaggregation import derender_protocol as derender
from app.extensions.disaggregation.derender_parts import (
    chat_logprobs,
    check_chat,
    check_length,
    completion_logprobs,
    head_of,
    reader_of,
    shown_ids,
)
from app.extensions.disaggregation.derender_stream import chat_event, completion_event


def routes(pipeline: RequestPipeline) -> list[Route]:
    """Returns the two routes."""
    handlers = DerenderHandlers(pipeline)
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
        post("/v1/chat/completions/derender", handlers.derender_chat, docs=chat_docs),
        post("/v1/completions/derender", handlers.derender_completion, docs=completion_docs),
    ]


class DerenderHandlers:
    """Handlers of the two routes."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        self._pipeline = pipeline

    def derender_chat(self, context: RequestContext) -> Response:
        """The chat completion of token ids; with `stream` an event of a chat, and its state."""
        pipeline = self._pipeline
        if is_event(pipeline, context):
            event = pipeline.decode(context, derender.DerenderChatStreamRequest)
            return json_response(chat_event(pipeline, event))
        request = pipeline.decode(context, derender.DerenderChatRequest)
        answer = request.generate_response
        head = self._head(
            model=request.model,
            answers=[answer],
            prompt_tokens=request.prompt_tokens or 0,
            prompts=[request.prompt_token_ids],
        )
        check_chat(pipeline, request.chat_request)
        choices = [self._chat_choice(request, choice) for choice in answer.choices]
        repeated: dict[str, Any] = {
            "prompt_logprobs": answer.prompt_logprobs,
            "kv_transfer_params": answer.kv_transfer_params,
            "metrics": answer.metrics,
        }
        return json_response(wire.ChatCompletion(**head, choices=choices, **repeated))

    def _chat_choice(
        self, request: derender.DerenderChatRequest, choice: derender.RenderedChoice
    ) -> wire.ChatChoice:
        pipeline = self._pipeline
        chat = request.chat_request
        parses = pipeline.limits.parses
        token_ids: Sequence[int] = choice.token_ids or ()
        skips_special = request.skips_special
        if parses:
            token_ids = shown_ids(pipeline, token_ids, choice.finish_reason)
            skips_special = False
        prompt_ids = request.prompt_token_ids or request.generate_response.prompt_token_ids
        read = reader_of(pipeline, chat, prompt_ids)
        pieces = read(pipeline.tokenizer.decode(token_ids, skips_special), True)
        message = self._message(chat, pieces)
        shows_ids = chat and chat.return_token_ids and (not parses or chat.include_reasoning)
        return wire.ChatChoice(
            index=choice.index,
            message=message,
            logprobs=chat_logprobs(pipeline, choice.logprobs),
            finish_reason=choice.finish_reason or "stop",
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if shows_ids else None,
        )

    def _message(
        self, chat: ChatCompletionRequest | None, pieces: Sequence[Piece]
    ) -> wire.ChatMessage:
        content = ""
        raw = ""
        reasoning = ""
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for part, text in pieces:
            if part is None:
                content += text
            elif part.kind == "reasoning":
                reasoning += text
            elif part.raw:
                raw = part.raw  # the whole reply, where its last call is cut off
            else:
                names[part.number] = part.name
                arguments[part.number] = arguments.get(part.number, "") + text
        is_forced = (
            chat is not None
            and self._pipeline.limits.parses
            and chat.tool_choice not in ("none", "auto", None)
        )
        message = wire.ChatMessage("assistant", raw or content)
        if not message.content and not is_forced and (names or reasoning):
            message.content = None
        if names and not raw:
            message.tool_calls = [
                wire.ToolCall(
                    id=self._pipeline.identity.fresh_id(),
                    type="function",
                    function=wire.FunctionCall(name, arguments[number]),
                )
                for number, name in names.items()
            ]
        if reasoning and chat is not None and chat.include_reasoning:
            message.reasoning = reasoning
        return message

    def derender_completion(self, context: RequestContext) -> Response:
        """The text completion of token ids; with `stream` an event of one, and its state.

        The choices of all whole answers are numbered consecutively.
        """
        pipeline = self._pipeline
        if is_event(pipeline, context):
            event = pipeline.decode(context, derender.DerenderCompletionStreamRequest)
            return json_response(completion_event(pipeline, event))
        request = pipeline.decode(context, derender.DerenderCompletionRequest)
        answers = request.generate_responses
        if not answers:
            raise bad_request("generate_responses must not be empty")
        head = self._head(
            model=request.model,
            answers=answers,
            prompt_tokens=sum(request.prompt_tokens or ()),
            prompts=request.prompt_token_ids or (),
        )
        choices = []
        for index, choice in enumerate(chain.from_iterable(answer.choices for answer in answers)):
            completion_choice = CompletionChoice(
                index=index,
                text=pipeline.tokenizer.decode(choice.token_ids or (), request.skips_special),
                logprobs=completion_logprobs(pipeline, choice.logprobs),
                finish_reason=choice.finish_reason or "stop",
                stop_reason=choice.stop_reason,
                token_ids=None,
                prompt_logprobs=None,
                prompt_token_ids=None,
            )
            choices.append(completion_choice)
        transfers = [answer.kv_transfer_params for answer in answers]
        are_equal = transfers.count(transfers[0]) == len(answers)
        repeated: dict[str, Any] = {
            "kv_transfer_params": transfers[0] if are_equal else None,
            "metrics": answers[0].metrics if len(answers) == 1 else None,
        }
        return json_response(Completion(**head, choices=choices, **repeated))

    def _head(
        self,
        *,
        model: str | None,
        answers: Sequence[derender.GenerateOutput],
        prompt_tokens: int,
        prompts: Sequence[Sequence[int] | None],
    ) -> dict[str, Any]:
        """Returns the first fields of an answer.

        Raises:
            ApiError: 404 for a wrong model; 400 without tokens, or for more tokens than a server
                with this context could have returned.
        """
        pipeline = self._pipeline
        served_model = pipeline.models.resolve(model)
        choices = [choice for answer in answers for choice in answer.choices]
        id_lists = [choice.token_ids or () for choice in choices]
        for ids in (*prompts, *id_lists):
            check_length(pipeline, len(ids or ()))
        for choice in choices:
            if not choice.token_ids:
                raise bad_request(f"choice {choice.index} has no token_ids")
        return {
            **head_of(pipeline, answers[0].request_id, model or served_model),
            "system_fingerprint": None,
            "usage": common.usage_of(prompt_tokens, sum(map(len, id_lists))),
        }


def is_event(pipeline: RequestPipeline, context: RequestContext) -> bool:
    """Returns whether the body is a JSON object with `stream` true."""
    try:
        body = msgspec.json.decode(pipeline.body.read(context), type=derender.StreamSwitch)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return body.stream is True
