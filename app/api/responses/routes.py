"""POST /v1/responses, and what can be done with a response later (vllm-api.md section 6)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from flask import Blueprint, request

from app.api.builder import Prompt
from app.api.chat.route import chat_prompt
from app.api.door import Door
from app.api.kv_transfer import address_of
from app.api.response_meta import ResponseMeta
from app.api.responses.background import Background, BackgroundRun, followed
from app.api.responses.store import EventLog, KeptResponse, ResponseStore, invalid
from app.api.responses.writer import ResponsesOptions, ResponsesWriter, new_response
from app.http.errors import ApiError, bad_request, malformed
from app.http.response import Reply, json_reply
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import Misfit, convert
from app.protocol.response_object import ResponseObject
from app.protocol.responses import ResponsesRequest
from app.protocol.responses_chat import chat_request, echo_text, go_on
from app.protocol.validation.limits import resolve_max_tokens


class Retrieval(msgspec.Struct, kw_only=True):
    """The query of GET /v1/responses/{id}."""

    starting_after: int | None = None
    """Number of the last event that the client knows."""
    stream: bool | None = False


def blueprint(door: Door, stores: bool) -> Blueprint:
    """The routes; with `stores`, responses are kept."""
    routes = Blueprint("responses", __name__)
    store = ResponseStore(stores)

    @routes.post("/v1/responses")
    def create_response() -> Reply:
        """The answer to some input: whole, as a stream, or in the background."""
        environ = request.environ
        asked = door.decode(environ, ResponsesRequest)
        chat = chat_request(asked)
        head = _head(door, asked, _enter(door, chat, environ), environ)
        _follow_on(asked, chat, store)
        prompt = _prompt(door, asked, chat)
        shape = _shape(door, asked, chat, prompt, head)
        if asked.background:
            return _in_background(door, chat, prompt, head, shape, store)
        ended = partial(_keep, store, chat) if asked.store and store.keeps else None
        answer = ResponsesWriter(shape, door.identity.fresh_id, ended)
        return door.play(chat, head, [prompt], answer, environ)

    @routes.get("/v1/responses/<response_id>")
    def retrieve_response(response_id: str) -> Reply:
        """A kept response as it is now; or, with `?stream=true`, its events."""
        kept, query = store.get(response_id), _query()
        if not query.stream:
            return json_reply(kept.response)
        if kept.log is None:
            raise bad_request("no events are kept of this response", "response_id")
        start = 0 if query.starting_after is None else max(0, query.starting_after + 1)
        return followed(kept.log, start, request.environ, door.delivery.headers)

    @routes.post("/v1/responses/<response_id>/cancel")
    def cancel_response(response_id: str) -> Reply:
        """End a response that is being generated in the background."""
        kept = store.get(response_id)
        kept.cancel()
        return json_reply(kept.response)

    @routes.errorhandler(RecursionError)
    def too_deep(error: RecursionError) -> Reply:
        """Tools that are one level below what cannot be parsed."""
        refused = bad_request("The request is nested too deeply.")
        return json_reply(refused.body(), refused.status)

    return routes


def _enter(door: Door, chat: ChatCompletionRequest, environ: dict[str, Any]) -> str:
    """As `Door.enter`, with this family's name for the limit of tokens."""
    try:
        return door.enter(chat, environ)
    except ApiError as error:
        if error.param != "max_completion_tokens":
            raise
        name = "max_output_tokens"
        raise ApiError(error.status, error.type, error.message.replace(error.param, name), name) from None


def _head(door: Door, asked: ResponsesRequest, model: str, environ: dict[str, Any]) -> ResponseMeta:
    """The id is the body's, or made of the header's, or a fresh one."""
    head = door.identity.head("resp", environ, "", model)
    own_id = asked.request_id or head.id.replace("-", "_", 1)
    return msgspec.structs.replace(head, id=own_id)


def _follow_on(asked: ResponsesRequest, chat: ChatCompletionRequest, store: ResponseStore) -> None:
    """Put the conversation so far before the input. ApiError when that, or keeping more, is impossible."""
    if asked.background and not store.keeps:
        raise invalid(
            "background needs kept responses, and enable-responses-store is off on this server.",
            "background",
        )
    if asked.previous_response_id is None:
        return
    if asked.previous_input_messages:
        raise invalid(
            "previous_input_messages and previous_response_id exclude each other.", "previous_response_id"
        )
    before = store.get(asked.previous_response_id)
    go_on(chat, before.messages, before.items())


def _prompt(door: Door, asked: ResponsesRequest, chat: ChatCompletionRequest) -> Prompt:
    """The conversation as tokens; with truncation "auto", as many of its last ones as leave room."""
    if asked.truncation == "auto":
        room = door.limits.max_model_len - max(asked.max_output_tokens or 1, 1)
        chat.truncate_prompt_tokens, chat.truncation_side = max(room, 1), "left"
    prompt = chat_prompt(door, chat, chat.messages)
    return msgspec.structs.replace(prompt, echo_text=echo_text(asked.input), turns=())


def _shape(
    door: Door, asked: ResponsesRequest, chat: ChatCompletionRequest, prompt: Prompt, head: ResponseMeta
) -> ResponsesOptions:
    ids, media = prompt.ids, prompt.features
    most_tokens = resolve_max_tokens(asked.max_output_tokens, len(ids), door.limits.max_model_len)
    hides = door.limits.reasons and not asked.include_reasoning
    return ResponsesOptions(
        response=new_response(asked, head, most_tokens),
        prompt_ids=ids,
        top_logprobs=None if hides else asked.logprobs,
        shows_reasoning=asked.include_reasoning,
        transfer=address_of(chat, door.identity, len(ids)),
        encoded_media=door.encoded_media(media and media["mm_hashes"]),
        prompt_text=door.tokenizer.decode(ids, False) if asked.enable_response_messages else None,
    )


def _in_background(
    door: Door,
    chat: ChatCompletionRequest,
    prompt: Prompt,
    head: ResponseMeta,
    shape: ResponsesOptions,
    store: ResponseStore,
) -> Reply:
    """Begin the response. What the engine refuses has its status here, even for a stream."""
    queued = msgspec.structs.replace(shape.response, status="queued")
    log = EventLog() if chat.stream else None
    run = BackgroundRun(KeptResponse(queued, chat.messages, log), store)
    chat.stream = False
    answer = ResponsesWriter(shape, door.identity.fresh_id, run.end)
    unattended = replace(door, delivery=Background.of(door.delivery, run))
    return unattended.play(chat, head, [prompt], answer, request.environ)


def _keep(store: ResponseStore, chat: ChatCompletionRequest, response: ResponseObject) -> None:
    store.keep(KeptResponse(response, chat.messages))


def _query() -> Retrieval:
    try:
        return convert(Retrieval, request.args.to_dict())
    except Misfit as misfit:
        where = f"query.{misfit.path[0]}"
        raise malformed(f"{where}: expected {misfit.expected}", where) from None
