"""Token in, token out: render, generate and abort, as disaggregated deployments call them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

from app.api.builder import Prompt
from app.api.chat.prompt import chat_prompt
from app.api.completions.route import completion_prompt
from app.api.frontend import Frontend
from app.api.generate.writer import GenerateResponseOptions, GenerateWriter
from app.api.identity import address_of
from app.engine.weights import Weights
from app.http.context import RequestContext
from app.http.errors import ApiError, bad_request
from app.http.response import Response, json_response
from app.http.route import Handler, Route, post
from app.protocol.chat import ChatCompletionRequest
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import decode
from app.protocol.generate import AbortRequest, GenerateRequest
from app.protocol.validation.generation import requested_max_tokens, resolve_max_tokens
from app.protocol.validation.sampling import GenerationRequest as Asked


def routes(frontend: Frontend, enabled: bool, weights: Weights, aborts: bool = False) -> list[Route]:
    """`enabled` is `enable-scale-out`; `aborts` serves POST /abort_requests without it, too."""

    def gated(handle: Handler) -> Handler:
        """403 unless scale-out is enabled."""

        @wraps(handle)
        def guarded(context: RequestContext) -> Response:
            if not enabled:
                raise ApiError(403, "PermissionDeniedError", "This needs a server with --enable-scale-out.")
            return handle(context)

        return guarded

    def generate(context: RequestContext) -> Response:
        """Token ids for token ids."""
        body = frontend.decode(context, GenerateRequest)
        asked = body.as_completion(frontend.limits.max_model_len)
        accepted = frontend.accept(asked, context)
        ids = frontend.fit(asked, body.token_ids)
        head = frontend.identity.head("generate-tokens", context, body.request_id, accepted.model)
        shape = GenerateResponseOptions(
            **frontend.options(accepted),
            prompt_ids=ids,
            text=body.output_mode == "text",
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, frontend.identity, len(ids)),
            encoded_media=frontend.encoded_media(body.mm_hashes),
            weights=lambda: weights.version,
        )
        prompt = Prompt(ids, frontend.tokenizer.decode(ids, False))
        return frontend.generate(accepted, head, [prompt], GenerateWriter(head, shape), context)

    def render_chat(context: RequestContext) -> Response:
        """The tokens and sampling parameters that a chat would be generated with."""
        asked = frontend.decode(context, ChatCompletionRequest)
        model = _base_model(frontend, asked)
        prompt = chat_prompt(frontend, asked, asked.messages)
        return json_response(_rendered(frontend, context, asked, "chatcmpl", model, prompt))

    def render_completion(context: RequestContext) -> Response:
        """The same for a text completion: one object per prompt."""
        asked = frontend.decode(context, CompletionRequest)
        model = _base_model(frontend, asked)
        prompts = [completion_prompt(frontend, asked, prompt) for prompt in asked.prompts()]
        return json_response(
            [_rendered(frontend, context, asked, "cmpl", model, prompt) for prompt in prompts]
        )

    def abort_requests(context: RequestContext) -> Response:
        """End requests by their ids; their clients are told `abort`."""
        body = frontend.body.read(context)
        asked = decode(body or b"{}", context.content_type or "application/json", AbortRequest)
        ids = asked.request_ids or None
        found = frontend.responder.engine.interrupt(None if ids is None else frozenset(ids))
        return json_response({"status": "aborted", "aborted": found if ids is None else len(ids)})

    return [
        post("/inference/v1/generate", gated(generate)),
        post("/v1/chat/completions/render", gated(render_chat)),
        post("/v1/completions/render", gated(render_completion)),
        *([post("/abort_requests", abort_requests)] if enabled or aborts else []),
        post("/inference/v1/abort_requests", gated(abort_requests)),
    ]


def _base_model(frontend: Frontend, asked: Asked) -> str:
    model = frontend.models.resolve(asked.model)
    if model in frontend.models.adapters:
        raise bad_request(f"Model `{model}` is an adapter, which cannot be rendered for.", "model")
    return model


def _rendered(
    frontend: Frontend, context: RequestContext, asked: Asked, prefix: str, model: str, prompt: Prompt
) -> dict[str, Any]:
    head = frontend.identity.head(prefix, context, asked.request_id, model)
    return {
        "request_id": head.id,
        "token_ids": prompt.ids,
        "token_offsets": None,
        "features": prompt.features,
        "content_parts": None,
        "sampling_params": _sampling_params(frontend, asked, prompt.ids),
        "model": model,
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": asked.return_token_ids,
        "output_mode": "tokens",
        "stream": bool(asked.stream),
        "stream_options": asked.stream_options,
        "cache_salt": asked.cache_salt,
        "priority": asked.priority,
        "kv_transfer_params": asked.kv_transfer_params,
        "ec_transfer_params": asked.ec_transfer_params,
    }


def _sampling_params(frontend: Frontend, asked: Asked, ids: Sequence[int]) -> dict[str, Any]:
    """vLLM's keys and order; what a request leaves out has vLLM's default, or is left out, too."""
    wanted, _ = requested_max_tokens(asked)
    stop = asked.stop or []
    given = {
        "seed": asked.seed,
        "top_k": asked.top_k or None,
        "logprobs": asked.logprobs if isinstance(asked, CompletionRequest) else None,
        "ignore_eos": asked.ignore_eos or None,
        "min_tokens": asked.min_tokens or None,
    }
    return {
        **{name: value for name, value in given.items() if value is not None},
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "repetition_penalty": 1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "min_p": asked.min_p or 0.0,
        "stop": [stop] if isinstance(stop, str) else stop,
        "stop_token_ids": asked.stop_token_ids or [],
        "max_tokens": resolve_max_tokens(wanted, len(ids), frontend.limits),
        "output_kind": 2,
        "skip_clone": True,
        "bad_words": asked.bad_words,
        "skip_reading_prefix_cache": False,
    }
