"""The two /derender routes: token ids as chats or completions, whole or in events of a stream."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.pipeline import RequestPipeline
from app.core.protocol import chat as wire
from app.core.protocol import common
from app.core.protocol.completions import Completion, CompletionChoice
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, post
from app.extensions.scale_out import derender_protocol as derender
from app.extensions.scale_out.derender_bounds import check_answers, check_prompts
from app.extensions.scale_out.derender_parts import (
    chat_logprobs,
    check_chat,
    complete_metrics,
    completion_logprobs,
    head_of,
    shown_ids,
)
from app.extensions.scale_out.derender_rules import (
    AnsweredRequest,
    Reply,
    reply_of,
    shown_logprobs,
    shows_token_ids,
)
from app.extensions.scale_out.derender_stream import chat_event, completion_event
from app.extensions.scale_out.message_reader import MessageReader
from app.extensions.scale_out.rules import rules_of
from config.untrusted import UntrustedDataError, decode_untrusted

VALUES_PER_CHOICE = 100
"""Work for a choice without tokens, in tokens that are decoded in the same time."""
VALUES_PER_LOGPROB = 10
"""Work for a named log probability, in tokens that are decoded in the same time."""


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
        """The chat completion of token IDs; with `stream` an event of a chat, and its state."""
        pipeline = self._pipeline
        if is_event(pipeline, context):
            event = pipeline.decode(context, derender.DerenderChatStreamRequest)
            return self._answer(chat_event(pipeline, event))
        request = pipeline.decode(context, derender.DerenderChatRequest)
        answer = request.generate_response
        head = self._head(
            model=request.model,
            answers=[answer],
            prompt_tokens=request.prompt_tokens or 0,
            prompts=[request.prompt_token_ids],
        )
        check_chat(pipeline, request.chat_request)
        prompt_ids = request.prompt_token_ids or answer.prompt_token_ids
        reader = MessageReader(pipeline, request.chat_request, prompt_ids)  # decodes the prompt
        choices: list[wire.ChatChoice] = []
        for choice in answer.choices:
            choices.append(self._chat_choice(request, choice, reader))
            spend(pipeline, choice)
        repeated: dict[str, Any] = {
            "prompt_logprobs": answer.prompt_logprobs,
            "prompt_token_ids": self._shown_prompt(answer, request.chat_request),
            "kv_transfer_params": answer.kv_transfer_params,
            "metrics": complete_metrics(answer.metrics),
        }
        return self._answer(wire.ChatCompletion(**head, choices=choices, **repeated))

    def _answer(self, answer: Struct) -> Response:
        return json_response(self._pipeline.version.shape.encode(answer))

    def _chat_choice(
        self,
        request: derender.DerenderChatRequest,
        choice: derender.RenderedChoice,
        reader: MessageReader,
    ) -> wire.ChatChoice:
        pipeline = self._pipeline
        chat = request.chat_request
        reply = self._chat_reply(request, choice)
        message = reader.read(reply.text)
        chat_choice = wire.ChatChoice(
            index=choice.index,
            message=message,
            logprobs=None,
            finish_reason=reader.finish_reason(choice.finish_reason, message),
            stop_reason=reply.stop_reason,
            token_ids=None,
            weight_versions=None,
        )
        if not reader.hides_logprobs:
            logprobs = shown_logprobs(pipeline, choice.logprobs, chat)
            chat_choice.logprobs = chat_logprobs(pipeline, logprobs)
        if chat is not None and chat.return_token_ids and not reader.hides_tokens:
            chat_choice.token_ids = choice.token_ids
        return chat_choice

    def _chat_reply(
        self, request: derender.DerenderChatRequest, choice: derender.RenderedChoice
    ) -> Reply:
        pipeline = self._pipeline
        if not pipeline.limits.parses:
            return reply_of(pipeline, choice, request.chat_request, request.skips_special)
        parsed = choice
        if not rules_of(pipeline).derenders_as_generated:
            token_ids = shown_ids(pipeline, choice.token_ids or (), choice.finish_reason)
            parsed = replace(choice, token_ids=list(token_ids))
        return reply_of(pipeline, parsed, request.chat_request, skips_special=False)

    def _shown_prompt(
        self, answer: derender.GenerateOutput, request: AnsweredRequest
    ) -> Sequence[int] | None:
        if shows_token_ids(self._pipeline, request):
            return answer.prompt_token_ids
        return None

    def derender_completion(self, context: RequestContext) -> Response:
        """The text completion of token IDs; with `stream` an event of one, and its state.

        The choices of all whole answers are numbered consecutively.
        """
        pipeline = self._pipeline
        if is_event(pipeline, context):
            event = pipeline.decode(context, derender.DerenderCompletionStreamRequest)
            return self._answer(completion_event(pipeline, event))
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
        choices: list[CompletionChoice] = []
        for answer in answers:
            for choice in answer.choices:
                choices.append(self._completion_choice(request, answer, choice, len(choices)))
                spend(pipeline, choice)
        transfers = [answer.kv_transfer_params for answer in answers]
        are_equal = transfers.count(transfers[0]) == len(answers)
        repeated: dict[str, Any] = {
            "kv_transfer_params": transfers[0] if are_equal else None,
            "metrics": complete_metrics(answers[0].metrics) if len(answers) == 1 else None,
        }
        return self._answer(Completion(**head, choices=choices, **repeated))

    def _completion_choice(
        self,
        request: derender.DerenderCompletionRequest,
        answer: derender.GenerateOutput,
        choice: derender.RenderedChoice,
        index: int,
    ) -> CompletionChoice:
        pipeline = self._pipeline
        completion = request.completion_request
        reply = reply_of(pipeline, choice, completion, request.skips_special)
        logprobs = shown_logprobs(pipeline, choice.logprobs, completion)
        shown = CompletionChoice(
            index=index,
            text=reply.text,
            logprobs=completion_logprobs(pipeline, logprobs),
            finish_reason=choice.finish_reason or "stop",
            stop_reason=reply.stop_reason,
            token_ids=None,
            prompt_logprobs=None,
            prompt_token_ids=self._shown_prompt(answer, completion),
            weight_versions=None,
        )
        if shows_token_ids(pipeline, completion):
            shown.token_ids = choice.token_ids
        return shown

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
        check_answers(pipeline, answers)
        check_prompts(pipeline, prompts)
        choices = [choice for answer in answers for choice in answer.choices]
        id_lists = [choice.token_ids or () for choice in choices]
        for choice in choices:
            if not choice.token_ids:
                raise bad_request(f"choice {choice.index} has no token_ids")
        return {
            **head_of(pipeline, answers[0].request_id, model or served_model),
            "system_fingerprint": None,
            "usage": common.usage_of(prompt_tokens, sum(map(len, id_lists))),
        }


def spend(pipeline: RequestPipeline, choice: derender.RenderedChoice) -> None:
    """Counts the work for a choice. Pauses at the end of a slice."""
    values = len(choice.token_ids or ())
    if choice.logprobs is not None:
        for entry in choice.logprobs.content or ():
            values += VALUES_PER_LOGPROB * (1 + len(entry.top_logprobs))
    pipeline.spend(VALUES_PER_CHOICE + values)


def is_event(pipeline: RequestPipeline, context: RequestContext) -> bool:
    """Returns whether the body is a JSON object with `stream` true."""
    try:
        body = decode_untrusted(pipeline.body.read(context), type=derender.StreamSwitch)
    except UntrustedDataError:
        return False
    return body.stream is True
