"""Builds the pipeline that validates requests for generation and hands them to the engine."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from app.core.api.chat.rules import ChatRules
from app.core.api.engine_requests import RequestBuilder
from app.core.api.fault import FaultInjection
from app.core.api.identity import Identity, pod_headers, system_fingerprint
from app.core.api.models import ServedModels
from app.core.api.pipeline import RequestPipeline
from app.core.api.responder import Responder, ServerLoad
from app.core.engine.sampling import SamplingDefaults
from app.core.protocol.validation import ModelLimits, RequestRules
from app.core.versions.chain import simulated_version

if TYPE_CHECKING:
    from app.core.api.reply_rules import ReplyRules
    from app.core.extensions import ServerParts

UNKNOWN_VOCABULARY_SIZE = 2**31
"""Assumed vocabulary size of a remote tokenizer that does not return one."""


def build_pipeline(parts: ServerParts, load: ServerLoad) -> RequestPipeline:
    """Returns the pipeline of all API families that generate text."""
    settings = parts.settings
    model = settings.model
    responder = Responder(
        engine=parts.engine,
        load=load,
        headers=pod_headers(parts.server),
        keep_alive_s=max(0.0, settings.api.sse_keep_alive_interval),
        faults=_fault_injection(parts),
    )

    def keeps_fast_path() -> bool:
        current = parts.live.current
        return all(extension.keeps_fast_path(current) for extension in parts.extensions)

    models = ServedModels(
        names=model.served_names,
        root=model.model,
        max_model_len=model.max_model_len,
        adapters=parts.adapters,
        any_name=model.takes_any_name,
    )
    defaults = SamplingDefaults()
    if parts.real_model is not None:
        defaults = parts.real_model.defaults
    builder = RequestBuilder(
        live=parts.live,
        models=models,
        schemas=parts.constraints,
        chat_rules=ChatRules.of(settings.api),
        real=parts.real_model,
        defaults=defaults,
    )
    return RequestPipeline(
        live=parts.live,
        version=simulated_version(settings.api),
        body=parts.body,
        models=models,
        tokenizer=parts.tokenizer,
        identity=_identity(parts),
        weights=parts.weights,
        responder=responder,
        limits=_limits(parts, defaults),
        schemas=parts.constraints,
        builder=builder,
        images=parts.streams("images"),
        chat_rules=builder.chat_rules,
        rank=parts.rank,
        real=parts.real_model,
        keeps_turns=any(extension.reads_messages for extension in parts.extensions),
        scripts=_reply_rules(parts),
        media=next(filter(None, (each.media() for each in parts.extensions)), None),
        tool_replies=parts.tool_replies,
        keeps_fast_path=keeps_fast_path,
    )


def _identity(parts: ServerParts) -> Identity:
    settings = parts.settings
    cache = settings.kvcache
    ranks = settings.server.data_parallel_size
    return Identity(
        cache,
        host=cache.kv_side_channel_host or parts.server.pod_ip or socket.gethostname(),
        devices=settings.model.tensor_parallel_size,
        fingerprint=system_fingerprint(settings.api, settings.model, ranks),
        rng=parts.streams("ids"),
    )


def _limits(parts: ServerParts, defaults: SamplingDefaults) -> ModelLimits:
    settings = parts.settings
    reasons = bool(settings.reply.reasoning_parser)
    parses_calls = settings.tools.tool_call_parser and settings.tools.enable_auto_tool_choice
    return ModelLimits(
        max_model_len=settings.model.max_model_len,
        vocab_size=parts.tokenizer.vocab_size or UNKNOWN_VOCABULARY_SIZE,
        max_logprobs=settings.api.max_logprobs,
        reasons=reasons,
        parses=reasons or bool(parses_calls),
        max_new_tokens=defaults.max_new_tokens,
        rules=simulated_version(settings.api).rules(RequestRules),
    )


def _fault_injection(parts: ServerParts) -> FaultInjection:
    for extension in parts.extensions:
        faults = extension.fault_injection()
        if faults is not None:
            return faults
    return FaultInjection()


def _reply_rules(parts: ServerParts) -> ReplyRules | None:
    for extension in parts.extensions:
        rules = extension.reply_rules()
        if rules is not None:
            return rules
    return None
