"""Adds the routes of the core to the application."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.api import admin, completions, invocations, models
from app.core.api.chat import completions as chat
from app.core.api.chat import prompt
from app.core.api.plain import plain_chats, plain_completions

if TYPE_CHECKING:
    from app.core.api.responder import ServerLoad
    from app.core.base.metrics.instruments import Exposition
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import Understudy


def add_model_routes(app: Understudy, parts: ServerParts) -> None:
    """Adds chats, completions, models and tokenization."""
    settings = parts.settings
    pipeline = parts.pipeline
    if settings.model.task == "generate":
        chats = plain_chats(pipeline)
        texts = plain_completions(pipeline)
        parts.live.subscribe(chats.on_settings)
        parts.live.subscribe(texts.on_settings)
        memos = {"plain chats": chats.known_prompts, "plain prompts": texts.known_prompts}
        app.caches.append(lambda: memos)
        app.add_routes("chat", chat.routes(pipeline, chats))
        app.add_routes("completions", completions.routes(pipeline, texts))
    app.add_routes("invocations", invocations.invocation_routes(parts.body, parts.routes))
    app.add_routes("models", models.routes(pipeline.models, pipeline.identity))
    app.add_routes("tokens", prompt.routes(pipeline, settings.api.enable_tokenizer_info_endpoint))
    if settings.lora.allow_runtime_lora_updating:
        app.add_routes("lora", models.adapter_routes(parts.body, pipeline.models))


def add_operator_routes(
    app: Understudy, parts: ServerParts, load: ServerLoad, exposition: Exposition
) -> None:
    """Adds health, metrics, live settings and the sizes of caches."""

    def is_healthy() -> bool:
        return parts.engine.healthy

    app.add_routes("health", admin.health_routes(is_healthy, parts.is_ready, load))
    app.add_routes("metrics", admin.metrics_routes(exposition))
    app.add_routes(
        "admin",
        admin.routes(parts.live, parts.engine, parts.body, parts.peers),
    )
    app.add_routes("memory", admin.memory_routes(app.caches))
