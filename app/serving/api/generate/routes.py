"""Token in, token out, for disaggregated deployments: generate and abort; render and derender."""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from app.engine.core.weights import Weights
from app.serving.api.builder import Prompt
from app.serving.api.generate import derender, render
from app.serving.api.generate.writer import GenerateResponseOptions, GenerateWriter
from app.serving.api.identity import address_of
from app.serving.api.pipeline import RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, malformed
from app.serving.http.response import Response, json_response
from app.serving.http.route import Handler, Route, post
from app.serving.protocol.decoding import read_json
from app.serving.protocol.generate import GenerateRequest

MEDIA_PARTS = ("image_url", "audio_url", "video_url")
"""Types of `content_parts` that are media; vLLM ignores other types."""
CLOSED = "Scale-out endpoints are disabled: this needs a server with --enable-scale-out."


def routes(pipeline: RequestPipeline, enabled: bool, weights: Weights, aborts: bool = False) -> list[Route]:
    """Returns the routes. `enabled` is `enable-scale-out`; `aborts` adds POST /abort_requests without it."""
    pipeline = replace(pipeline, force_usage=False)  # a stream of token ids has usage on request only

    def gated(handle: Handler) -> Handler:
        """Answers 403 unless scale-out is enabled."""

        @wraps(handle)
        def guarded(context: RequestContext) -> Response:
            if not enabled:
                raise ApiError(403, "PermissionDeniedError", CLOSED)
            return handle(context)

        return guarded

    def generate(context: RequestContext) -> Response:
        """Token ids for token ids."""
        body = pipeline.decode(context, GenerateRequest)
        asked = body.as_completion(pipeline.limits.max_model_len)
        accepted = pipeline.admit(asked, context)
        if not pipeline.builder.settings.model.multimodal and any(
            part.get("type") in MEDIA_PARTS for part in body.content_parts or ()
        ):
            raise bad_request("The served model is not a multimodal model: it reads text alone.")
        ids = body.token_ids
        head = pipeline.identity.response_meta("generate-tokens", context, body.request_id, accepted.model)
        shape = GenerateResponseOptions(
            **pipeline.options(accepted),
            prompt_ids=ids,
            text=body.output_mode == "text",
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, pipeline.identity, head, len(ids)),
            encoded_media=pipeline.encoded_media(body.mm_hashes),
            weights=lambda: weights.version,
        )
        writer = GenerateWriter(head, shape)
        if accepted.n > (most := pipeline.builder.settings.scheduling.max_num_seqs):
            raise bad_request(f"n is at most max-num-seqs, {most}, got {accepted.n}")
        try:
            pipeline.limits.check_prompt(ids)
        except ApiError as error:
            if not body.stream:
                raise
            return pipeline.responder.broken(error, writer)
        prompt = Prompt(ids, pipeline.tokenizer.decode(ids, False))
        return pipeline.submit(accepted, head, [prompt], writer, context)

    def abort_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, or all requests; their clients receive `abort`."""
        body = read_json(pipeline.body.read(context))
        if not isinstance(body, dict):
            raise malformed("The body must be a JSON object.")
        named = body.get("request_ids")
        if named and not isinstance(named, str | list | dict):
            raise malformed("request_ids must be a list")
        ids = _ids(body)
        found = pipeline.responder.engine.interrupt(frozenset(ids) if ids else None)
        return json_response({"status": "aborted", "aborted": len(ids) if ids else found})

    def abort_named_requests(context: RequestContext) -> Response:
        """Ends requests by their ids, with an empty answer."""
        body = read_json(pipeline.body.read(context))
        if not isinstance(body, dict):
            raise malformed("The body is not an object")
        if body.get("request_ids") is None:
            raise malformed("request_ids is missing")
        pipeline.responder.engine.interrupt(frozenset(_ids(body)))
        return Response()

    return [
        post("/inference/v1/generate", gated(generate)),
        *(
            replace(it, handle=gated(it.handle))
            for it in (*render.routes(pipeline), *derender.routes(pipeline))
        ),
        *([post("/abort_requests", abort_requests)] if enabled or aborts else []),
        post("/inference/v1/abort_requests", gated(abort_named_requests)),
    ]


def _ids(body: dict[str, Any]) -> list[str]:
    ids = body.get("request_ids")
    if isinstance(ids, str):
        return [ids] if ids else []
    return [each for each in ids if isinstance(each, str)] if isinstance(ids, list | dict) else []
