"""The engines of a server that hand over KV caches, with their side channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from uuid import uuid4

from app.core.engine.engine import Engine
from app.extensions.handoff.channel import SideChannel
from app.extensions.handoff.engine import HandoffEngine
from app.extensions.handoff.handoffs import Peering
from config import Settings


class Peerings:
    """Makes the engine of each rank, with a side channel at the port of the rank."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.channels: list[SideChannel] = []

    def engine_maker(self, rank: int) -> Callable[..., Engine]:
        """Returns what makes the engine of a rank."""
        options = self._settings.kvcache
        channel = SideChannel(options.kv_side_channel_host, options.kv_side_channel_port + rank)
        self.channels.append(channel)
        model = self._settings.model.served_names[0]
        peering = Peering(channel, partial(self._engine_id, rank), model, rank)
        return partial(HandoffEngine, peering=peering)

    @cached_property
    def _server_id(self) -> str:
        """An id that no other server has, not even one with the same seed."""
        return str(uuid4())

    def _engine_id(self, rank: int) -> str:
        if self._settings.server.data_parallel_size > 1:
            return f"{self._server_id}_dp{rank}"
        return self._server_id
