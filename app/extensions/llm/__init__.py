"""The real engine: a small model that computes its replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, OtherEngine
from app.extensions.llm.settings import LlmSettings

if TYPE_CHECKING:
    from gunicorn.glogging import Logger

    from app.core.engine.kvcache.publishing import PublisherSettings
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from app.core.server.http.route import Route
    from app.core.text.base import Tokenizer
    from app.extensions.llm.engine_process import EngineProcess
    from app.extensions.llm.wire import EngineProcessOptions
    from config import Settings as AllSettings


class RealEngine(Extension):
    """Serves the model of an engine process that the arbiter starts."""

    name = "llm"
    Settings = LlmSettings
    requires = ("forms", "gguf", "tool_calls")

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._services: Sequence[BackgroundService] = ()

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the engine of this server is real."""
        return settings.engine.is_real

    @classmethod
    def tokenizer(cls, settings: AllSettings) -> Tokenizer | None:
        """Returns the tokenizer beside the weights, unless one is named. Raises ConfigError."""
        if settings.tokenizer.tokenizer is not None:
            return None
        from app.extensions.llm.real_engine import model_tokenizer

        return model_tokenizer(settings)

    @classmethod
    def engine_process(
        cls, settings: AllSettings, kv_events: PublisherSettings
    ) -> EngineProcessOptions:
        """Returns the options of the engine process. Raises ConfigError."""
        from app.extensions.llm.real_engine import engine_options

        return engine_options(settings, kv_events)

    @classmethod
    def new_engine_process(
        cls, options: EngineProcessOptions, log: Logger, timeout_s: float
    ) -> EngineProcess:
        """Returns the engine process."""
        from app.extensions.llm.engine_process import EngineProcess  # imports msgpack

        return EngineProcess(options, log, timeout_s)

    def engine(self) -> OtherEngine:
        """Returns the client of the engine process."""
        from app.extensions.llm.real_engine import remote_parts  # imports ZMQ

        engine, parts = remote_parts(self.parts)
        self._services = (engine,)
        return parts

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the route of the engine's statistics."""
        from app.extensions.llm.routes import statistics_routes

        return {"stats": statistics_routes(self.parts.recorder.figures)}

    def services(self) -> Sequence[BackgroundService]:
        """Returns the client of the engine process."""
        return self._services
