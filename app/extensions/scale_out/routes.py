"""POST `/inference/v1/generate` and routes that abort requests; with the render routes, as in vLLM.

Token ids come in, and token ids go out.
"""

import logging
from functools import wraps

from msgspec.structs import replace

from app.core.api.chat.media import BuiltPrompt
from app.core.api.logprobs import ALL
from app.core.api.pipeline import RequestPipeline
from app.core.api.weight_spans import Weights
from app.core.base.clock.pause import paced
from app.core.protocol.coercion import JsonObject
from app.core.protocol.convert import convert
from app.core.protocol.decoding import read_json
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, forbidden, malformed
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import STREAM_MEDIA, Handler, Route, RouteDocs, post
from app.extensions.scale_out import derender, render
from app.extensions.scale_out import protocol as wire
from app.extensions.scale_out.message_reader import MessageReader
from app.extensions.scale_out.parse_context import chat_of
from app.extensions.scale_out.rendered_chat import rendered_chat, separate_form
from app.extensions.scale_out.rules import rules_of
from app.extensions.scale_out.settings import ScaleOutSettings
from app.extensions.scale_out.writer import GenerateResponseOptions, GenerateWriter

MEDIA_PARTS = ("image_url", "audio_url", "video_url")
"""Types of `content_parts` that are media; vLLM ignores other types."""
log = logging.getLogger(__name__)


def routes(
    pipeline: RequestPipeline, enabled: bool, weights: Weights, aborts: bool = False
) -> list[Route]:
    """Returns the routes.

    `enabled` is `enable-scale-out`; `aborts` adds POST /abort_requests.
    """
    handlers = GenerateHandlers(pipeline, weights)
    gate = ScaleOutGate(enabled)

    def gated(handle: Handler) -> Handler:
        @wraps(handle)
        def guarded(context: RequestContext) -> Response:
            gate.check(context)
            return handle(context)

        return guarded

    generate_docs = RouteDocs(
        body=(wire.GenerateRequest,),
        example={"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 5}},
        answer=wire.GenerateResponse,
        media=STREAM_MEDIA,
    )
    abort_docs = RouteDocs(
        body=(wire.AbortRequest,),
        example={"request_ids": ["cmpl-1"]},
        body_is_optional=True,
    )
    generate_routes = [post("/inference/v1/generate", gated(handlers.generate), docs=generate_docs)]
    for route in (*render.routes(pipeline), *derender.routes(pipeline)):
        generate_routes.append(replace(route, handle=gated(route.handle)))
    if aborts:
        generate_routes.append(post("/abort_requests", handlers.abort_requests, docs=abort_docs))
    abort_named = gated(handlers.abort_named_requests)
    generate_routes.append(post("/inference/v1/abort_requests", abort_named, docs=abort_docs))
    return generate_routes


class ScaleOutGate:
    """Rejects requests to routes that `enable-scale-out` turns on."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled
        self._has_warned = False

    def check(self, context: RequestContext) -> None:
        """Logs the first rejection, which routers may hide from their users.

        Raises:
            ApiError: 403 if the routes are off.
        """
        if self._enabled:
            return
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s is rejected: it requires --enable-scale-out", context.path)
        raise forbidden(
            "Scale-out endpoints are disabled. "
            "Restart vllm serve with --enable-scale-out to enable them."
        )


class GenerateHandlers:
    """Handlers of the routes for token ids, and of the routes that abort requests."""

    def __init__(self, pipeline: RequestPipeline, weights: Weights) -> None:
        self._pipeline = pipeline
        self._weights = weights
        rules = rules_of(pipeline)
        self._request_type = rules.request_type
        self._follows_rank = rules.follows_rank
        self._tokens_only = pipeline.live.current.section(ScaleOutSettings).tokens_only

    def generate(self, context: RequestContext) -> Response:
        """Token IDs for token IDs."""
        pipeline = self._pipeline
        body = pipeline.decode(context, self._request_type)
        room = pipeline.limits.max_model_len - len(body.token_ids)
        completion = body.as_completion(room)
        accepted = pipeline.admit(completion, context)
        max_num_seqs = pipeline.live.current.scheduling.max_num_seqs
        if accepted.n > max_num_seqs:
            raise bad_request(f"n must not exceed max-num-seqs ({max_num_seqs}), got {accepted.n}")
        if self._tokens_only:
            check_needs_no_tokenizer(body)
        prompt = BuiltPrompt(body.token_ids, pipeline.tokenizer.decode(body.token_ids, False))
        chat = rendered_chat(pipeline, body, prompt.echo_text)
        if chat is not None:
            accepted.chat = chat
            if completion.max_tokens == room:
                accepted.requested = None  # the chat had no limit
            separate_form(pipeline, chat, completion)
            if body.reasoning_ended and completion.structured_outputs is not None:
                accepted.chat = None  # the form decides the text from the first token
        reader = self._message_reader(body)
        has_media = any(part.get("type") in MEDIA_PARTS for part in body.content_parts or ())
        if has_media and not pipeline.live.current.model.multimodal:
            raise bad_request("The served model is not a multimodal model: it accepts only text.")
        meta = pipeline.identity.response_meta(
            "generate-tokens", context, body.request_id, accepted.model
        )
        options = GenerateResponseOptions(
            **pipeline.options(accepted, may_force_usage=False) | {"weights": self._weights},
            prompt_ids=body.token_ids,
            mode=body.output_mode,
            logprobs=completion.logprobs is not None,
            top_logprobs=shown_alternatives(body),
            reader=reader,
        )
        writer = GenerateWriter(meta, options)
        writer.follows_rank = self._follows_rank
        if pipeline.media is not None:
            writer.encoded_media = pipeline.media().encoded(body.mm_hashes or {})
        try:
            pipeline.limits.check_prompt(body.token_ids)
        except ApiError as error:
            if not body.stream:
                raise
            return pipeline.responder.broken(error, writer)
        return pipeline.submit(accepted, meta, [prompt], writer, context)

    def _message_reader(self, body: wire.GenerateRequest) -> MessageReader | None:
        """Returns the reader of messages for the output mode derender, None for other modes.

        Raises:
            ApiError: 400 for a stream, and beside a parser for a context that is missing or wrong.
        """
        if body.output_mode != "derender":
            return None
        if body.stream:
            raise bad_request("output_mode='derender' does not support stream=true.")
        chat = None
        if self._pipeline.limits.parses:
            if body.parse_context is None:
                raise bad_request(
                    "output_mode='derender' requires parse_context on a server with a tool or "
                    "reasoning parser; send the parse_context that /render returned."
                )
            chat = chat_of(convert(wire.ParseContext, body.parse_context))
        return MessageReader(self._pipeline, chat, body.token_ids)

    def abort_requests(self, context: RequestContext) -> Response:
        """Ends requests by their IDs, or all requests; their clients receive `abort`."""
        body = self._abort_body(context)
        request_ids = body.get("request_ids")
        if request_ids and not isinstance(request_ids, str | list | dict):
            raise malformed("request_ids must be a list")
        ids = texts_of(request_ids)
        aborted = self._pipeline.responder.engine.interrupt(frozenset(ids) if ids else None)
        return json_response({"status": "aborted", "aborted": len(ids) if ids else aborted})

    def abort_named_requests(self, context: RequestContext) -> Response:
        """Ends requests by their IDs, with an empty answer."""
        request_ids = self._abort_body(context).get("request_ids")
        if request_ids is None:
            raise malformed("Missing 'request_ids' in request body")
        self._pipeline.responder.engine.interrupt(frozenset(texts_of(request_ids)))
        return Response()

    def _abort_body(self, context: RequestContext) -> JsonObject:
        body = read_json(self._pipeline.body.read(context))
        if not isinstance(body, dict):
            raise malformed("Request body must be a JSON object")
        return body


def texts_of(request_ids: object) -> list[str]:
    """Returns the texts among some ids, as vLLM reads them; a text is one id."""
    if isinstance(request_ids, str) and request_ids:
        return [request_ids]
    if isinstance(request_ids, list | dict):
        return [request_id for request_id in paced(request_ids) if isinstance(request_id, str)]
    return []


def shown_alternatives(body: wire.GenerateRequest) -> int:
    """Returns how many alternatives a log probability shows; a message shows those of a chat."""
    params = body.sampling_params
    if body.output_mode != "derender" or params.logprob_token_ids:
        return ALL
    return params.logprobs or 0


def check_needs_no_tokenizer(body: wire.GenerateRequest) -> None:
    """Raises ApiError 400 for a request whose answer needs texts of tokens, with tokens-only."""
    if body.sampling_params.stop:
        raise bad_request(
            "This server runs with --tokens-only, which does not support stop strings; use "
            "stop_token_ids, or search for stop strings after decoding the tokens."
        )
    if body.output_mode != "tokens":
        raise bad_request(
            f"output_mode {body.output_mode} requires a tokenizer, which a server with "
            "--tokens-only does not have; use output_mode tokens."
        )
