"""Routes that free the KV cache, show the state of the engine, and show the settings."""

from collections.abc import Callable, Mapping
from typing import Literal

from msgspec import Struct

from app.core.api.chat.media import MediaReader
from app.core.engine.lifecycle import Operations
from app.core.protocol.decoding import decode_query
from app.core.server.http.context import RequestContext
from app.core.server.http.route import EMPTY_ANSWER, Route, RouteDocs, action
from app.extensions.devmode.engine_actions import ActionRules, EngineActions


class InfoQuery(Struct):
    """The query of ``GET /server_info``."""

    config_format: Literal["text", "json"] = "text"


class LifecycleHandlers:
    """Handlers of the routes for the KV cache, the engine's state and the settings.

    Without `sleep_enabled` (`enable-sleep-mode`) the cache is not freed. `settings` returns all
    settings for display.
    """

    def __init__(
        self,
        lifecycle: Operations,
        sleep_enabled: bool,
        settings: Callable[[], Mapping[str, object]],
        *,
        media: Callable[[], MediaReader] | None,
    ) -> None:
        self._lifecycle = lifecycle
        self._media = media
        self._sleep_enabled = sleep_enabled
        self._settings = settings

    def release_cache(self, context: RequestContext) -> object:
        """Frees the KV cache of a paused server; POST /wake_up?tags=kv_cache restores it."""
        if self._sleep_enabled:
            self._lifecycle.release_cache()
        return {"status": "kv_cache_released"}

    def is_sleeping(self, context: RequestContext) -> object:
        """True while the model sleeps or is paused."""
        return {"is_sleeping": self._lifecycle.is_sleeping or self._lifecycle.paused}

    def is_paused(self, context: RequestContext) -> object:
        """True while new requests have to wait."""
        return {"is_paused": self._lifecycle.paused}

    def reset_media(self, context: RequestContext) -> None:
        """Clears the cache of media."""
        if self._media is not None:
            self._media().forget()

    def reset_encoder(self, context: RequestContext) -> None:
        """Succeeds: the cache of the encoder is the one of the scheduler, which keeps it."""

    def server_info(self, context: RequestContext) -> object:
        """The settings, as text or as JSON."""
        query = decode_query(context.query(), InfoQuery)
        settings = self._settings()
        shown: object = settings
        if query.config_format == "text":
            shown = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return {"vllm_config": shown, "vllm_env": {}, "system_env": {}}


def lifecycle_routes(
    lifecycle: Operations,
    sleep_enabled: bool,
    settings: Callable[[], Mapping[str, object]],
    *,
    media: Callable[[], MediaReader] | None,
    rules: ActionRules,
) -> list[Route]:
    """Returns the routes of `EngineActions` and `LifecycleHandlers`."""
    handlers = LifecycleHandlers(lifecycle, sleep_enabled, settings, media=media)
    return [
        *EngineActions(lifecycle, sleep_enabled, rules).routes(),
        action("POST /release_kv_cache_memory", handlers.release_cache),
        action("GET /is_sleeping", handlers.is_sleeping),
        action("GET /is_paused", handlers.is_paused),
        action("GET /server_info", handlers.server_info, RouteDocs(query=InfoQuery)),
        action("POST /reset_mm_cache", handlers.reset_media, EMPTY_ANSWER),
        action("POST /reset_encoder_cache", handlers.reset_encoder, EMPTY_ANSWER),
    ]
