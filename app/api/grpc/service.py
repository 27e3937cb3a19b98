"""All that a server answers over gRPC."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain

from app.api.frontend import Frontend
from app.api.grpc.embed import embed_method
from app.api.grpc.events import events_method
from app.api.grpc.generate import generate_method
from app.api.grpc.information import ServerFacts
from app.api.grpc.messages import SERVICE
from app.api.grpc.standard import HEALTH, REFLECTIONS, health_methods, reflection_methods, unimplemented
from app.api.grpc.tokenizer import tokenizer_method
from app.http.rpc import RpcMethod, RpcService
from app.kvcache.event_sender import EventSender

MEBIBYTE = 1 << 20
MOST_MESSAGE_MIB = 16
"""However large bodies of HTTP may be: to take a message apart cannot be done in slices."""


def rpc_service(
    frontend: Frontend, facts: ServerFacts, is_ready: Callable[[], bool], publisher: EventSender | None
) -> RpcService:
    """The methods, each of which does what it can for the model that is served."""
    settings = facts.settings()
    generates = settings.model.task == "generate"
    own: Sequence[RpcMethod] = [
        generate_method(frontend)
        if generates
        else unimplemented(f"/{SERVICE}/Generate", "This model pools; it does not generate."),
        embed_method(frontend, settings.model),
        events_method(publisher, facts),
        tokenizer_method(settings),
    ]
    methods = chain(
        own, facts.methods(), health_methods(is_ready), reflection_methods([SERVICE, HEALTH, *REFLECTIONS])
    )
    most = min(MOST_MESSAGE_MIB, math.ceil(settings.server.max_request_body_size_mb)) * MEBIBYTE
    return RpcService({method.path: method for method in methods}, most)
