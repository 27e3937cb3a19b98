"""Routes that put the model to sleep, pause the engine, empty caches and show the settings."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

from gevent.event import Event
from msgspec import Meta, Struct

from app.core.engine.lifecycle import Operations
from app.core.engine.sleep import DEEPEST_SLEEP, PauseMode
from app.core.protocol.decoding import decode_query
from app.core.server.http.client_connection import watched
from app.core.server.http.context import RequestContext
from app.core.server.http.route import EMPTY_ANSWER, Route, RouteDocs, action


class SleepQuery(Struct):
    """The query of ``POST /sleep``."""

    level: Annotated[int, Meta(ge=0, le=DEEPEST_SLEEP)] = 1
    mode: PauseMode = "abort"


class WakeQuery(Struct):
    """The query of ``POST /wake_up``, which the handler reads without this type."""

    tags: list[str]


class PauseQuery(Struct):
    """The query of ``POST /pause``."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class ResetQuery(Struct):
    """The query of ``POST /reset_prefix_cache``."""

    reset_running_requests: bool = False
    reset_external: bool = False
    """Also empties the tier in host memory (`kv-offload-size`)."""


class InfoQuery(Struct):
    """The query of ``GET /server_info``."""

    config_format: Literal["text", "json"] = "text"


class LifecycleHandlers:
    """Handlers of the routes for sleep, pause, caches and settings.

    Without `sleep_enabled` (`enable-sleep-mode`) sleep has no effect. `settings` returns all
    settings for display.
    """

    def __init__(
        self,
        lifecycle: Operations,
        sleep_enabled: bool,
        settings: Callable[[], Mapping[str, object]],
    ) -> None:
        self._lifecycle = lifecycle
        self._sleep_enabled = sleep_enabled
        self._settings = settings

    def sleep(self, context: RequestContext) -> object:
        """Puts the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."""
        query = decode_query(context.query(), SleepQuery)
        if self._sleep_enabled:
            caller_left = Event()
            with watched(context.connection, caller_left.set):
                self._lifecycle.sleep(query.level, query.mode, caller_left)
        return {"status": "sleeping", "level": query.level}

    def release_cache(self, context: RequestContext) -> object:
        """Frees the KV cache of a paused server; POST /wake_up?tags=kv_cache restores it."""
        if self._sleep_enabled:
            self._lifecycle.release_cache()
        return {"status": "kv_cache_released"}

    def wake_up(self, context: RequestContext) -> object:
        """Wakes the model up, or only the parts that `tags` name."""
        tags = list(context.arguments("tags")) or None
        is_awake = self._lifecycle.wake_up(tags)
        return {"status": "awake" if is_awake else "sleeping", "tags": tags}

    def is_sleeping(self, context: RequestContext) -> object:
        """True while the model sleeps or is paused."""
        return {"is_sleeping": self._lifecycle.is_sleeping or self._lifecycle.paused}

    def pause(self, context: RequestContext) -> object:
        """Stops starting requests; `mode` decides about running requests."""
        query = decode_query(context.query(), PauseQuery)
        caller_left = Event()
        with watched(context.connection, caller_left.set):
            self._lifecycle.pause(query.mode, caller_left, query.clear_cache)
        return {"status": "paused"}

    def resume(self, context: RequestContext) -> object:
        """Starts requests again."""
        self._lifecycle.resume()
        return {"status": "resumed"}

    def is_paused(self, context: RequestContext) -> object:
        """True while new requests have to wait."""
        return {"is_paused": self._lifecycle.paused}

    def reset_prefix_cache(self, context: RequestContext) -> object:
        """Empties the prefix cache."""
        query = decode_query(context.query(), ResetQuery)
        is_reset = self._lifecycle.reset_prefix_cache(
            query.reset_running_requests, query.reset_external
        )
        return {"success": is_reset}

    def reset_media(self, context: RequestContext) -> None:
        """Succeeds: no media are cached here."""

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
) -> list[Route]:
    """Returns the routes of `LifecycleHandlers`."""
    handlers = LifecycleHandlers(lifecycle, sleep_enabled, settings)
    return [
        action("POST /sleep", handlers.sleep, RouteDocs(query=SleepQuery)),
        action("POST /release_kv_cache_memory", handlers.release_cache),
        action("POST /wake_up", handlers.wake_up, RouteDocs(query=WakeQuery)),
        action("POST /pause", handlers.pause, RouteDocs(query=PauseQuery)),
        action("POST /resume", handlers.resume),
        action(
            "POST /reset_prefix_cache", handlers.reset_prefix_cache, RouteDocs(query=ResetQuery)
        ),
        action("GET /is_sleeping", handlers.is_sleeping),
        action("GET /is_paused", handlers.is_paused),
        action("GET /server_info", handlers.server_info, RouteDocs(query=InfoQuery)),
        action("POST /reset_mm_cache", handlers.reset_media, EMPTY_ANSWER),
        action("POST /reset_encoder_cache", handlers.reset_media, EMPTY_ANSWER),
    ]
