"""Handoffs of KV caches from prefill pods to decode pods, as by vLLM's NixlConnector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from app.core.engine.engine import Engine
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from app.extensions.handoff.channel import SideChannel
    from config import Settings


class Handoff(Extension):
    """Makes the engine of each rank hold, read and release blocks over a side channel."""

    name = "handoff"

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._channels: list[SideChannel] = []

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether the connector is NixlConnector, in a simulation that generates."""
        is_simulated = not (settings.engine.is_real or settings.model.mm_encoder_only)
        has_connector = settings.kvcache.kv_connector == "nixl"
        return has_connector and is_simulated and settings.model.task == "generate"

    def simulated_engine(self, rank: int) -> Callable[..., Engine]:
        """Returns what makes the engine of a rank, with a side channel at the port of the rank."""
        from app.extensions.handoff.channel import SideChannel  # imports ZMQ
        from app.extensions.handoff.engine import HandoffEngine, Site

        options = self.parts.settings.kvcache
        channel = SideChannel(options.kv_side_channel_host, options.kv_side_channel_port + rank)
        self._channels.append(channel)
        site = Site(channel, partial(self._engine_id, rank), rank)
        return partial(HandoffEngine, site=site)

    def services(self) -> Sequence[BackgroundService]:
        """Returns the side channels."""
        return self._channels

    @cached_property
    def _server_id(self) -> str:
        """An id that no other server has, not even one with the same seed."""
        from uuid import uuid4  # other servers need none

        return str(uuid4())

    def _engine_id(self, rank: int) -> str:
        if self.parts.settings.server.data_parallel_size > 1:
            return f"{self._server_id}_dp{rank}"
        return self._server_id
