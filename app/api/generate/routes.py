"""Token in, token out: render, generate and abort, as disaggregated deployments call them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from flask import Blueprint, request

from app.api.builder import Prompt
from app.api.chat.route import chat_prompt
from app.api.completions.route import completion_prompt
from app.api.door import Door
from app.api.generate.writer import GenerateResponseOptions, GenerateWriter
from app.api.kv_transfer import address_of
from app.http.errors import ApiError, bad_request
from app.http.response import Reply, json_reply
from app.protocol.chat import ChatCompletionRequest
from app.protocol.completions import CompletionRequest
from app.protocol.decoding import decode
from app.protocol.generate import AbortRequest, GenerateRequest
from app.protocol.validation import limits
from app.protocol.validation.limits import GenerateRequest as Asked

View = TypeVar("View", bound=Callable[[], Reply])


def blueprint(door: Door, enabled: bool) -> Blueprint:
    routes = Blueprint("scale_out", __name__)

    def gated(view: View) -> View:
        """403 unless scale-out is enabled."""

        @wraps(view)
        def guarded() -> Reply:
            if not enabled:
                raise ApiError(403, "PermissionDeniedError", "This needs a server with --enable-scale-out.")
            return view()

        return guarded  # type: ignore[return-value]

    @routes.post("/inference/v1/generate")
    @gated
    def generate() -> Reply:
        """Token ids for token ids."""
        environ = request.environ
        body = door.decode(environ, GenerateRequest)
        asked = body.as_completion(door.limits.max_model_len)
        model = door.enter(asked, environ)
        ids = door.fit(asked, body.token_ids)
        head = door.identity.head("generate-tokens", environ, body.request_id, model)
        shape = GenerateResponseOptions(
            **door.shape(asked),
            prompt_ids=ids,
            text=body.output_mode == "text",
            logprobs=asked.logprobs is not None,
            transfer=address_of(asked, door.identity, len(ids)),
            encoded_media=door.encoded_media((body.features or {}).get("mm_hashes")),
        )
        prompt = Prompt(ids, door.tokenizer.decode(ids, False))
        return door.play(asked, head, [prompt], GenerateWriter(head, shape), environ)

    @routes.post("/v1/chat/completions/render")
    @gated
    def render_chat() -> Reply:
        """The tokens and sampling parameters that a chat would be generated with."""
        environ = request.environ
        asked = door.decode(environ, ChatCompletionRequest)
        model = _base_model(door, asked)
        prompt = chat_prompt(door, asked, asked.messages)
        return json_reply(_rendered(door, asked, "chatcmpl", model, prompt))

    @routes.post("/v1/completions/render")
    @gated
    def render_completion() -> Reply:
        """The same for a text completion: one object per prompt."""
        environ = request.environ
        asked = door.decode(environ, CompletionRequest)
        model = _base_model(door, asked)
        prompts = [completion_prompt(door, asked, prompt) for prompt in asked.prompts()]
        return json_reply([_rendered(door, asked, "cmpl", model, prompt) for prompt in prompts])

    @routes.post("/abort_requests")
    @routes.post("/inference/v1/abort_requests")
    @gated
    def abort_requests() -> Reply:
        """End requests by their ids; their clients are told `abort`."""
        body = door.body.read(request.environ)
        asked = decode(body or b"{}", request.content_type or "application/json", AbortRequest)
        ids = asked.request_ids or None
        found = door.delivery.service.interrupt(None if ids is None else frozenset(ids))
        return json_reply({"status": "aborted", "aborted": found if ids is None else len(ids)})

    return routes


def _base_model(door: Door, asked: Asked) -> str:
    model = door.models.resolve(asked.model)
    if model in door.models.adapters:
        raise bad_request(f"Model `{model}` is an adapter, which cannot be rendered for.", "model")
    return model


def _rendered(door: Door, asked: Asked, prefix: str, model: str, prompt: Prompt) -> dict[str, Any]:
    head = door.identity.head(prefix, request.environ, asked.request_id, model)
    return {
        "request_id": head.id,
        "token_ids": prompt.ids,
        "token_offsets": None,
        "features": prompt.features,
        "content_parts": None,
        "sampling_params": _sampling_params(door, asked, prompt.ids),
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


def _sampling_params(door: Door, asked: Asked, ids: Sequence[int]) -> dict[str, Any]:
    """vLLM's keys and order; what a request leaves out has vLLM's default, or is left out, too."""
    wanted, _ = limits.requested_max_tokens(asked)
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
        "max_tokens": limits.resolve_max_tokens(wanted, len(ids), door.limits.max_model_len),
        "output_kind": 2,
        "skip_clone": True,
        "bad_words": asked.bad_words,
        "skip_reading_prefix_cache": False,
    }
