"""Handoffs of KV caches from prefill pods to decode pods, as by vLLM's connectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.handoff.settings import HandoffSettings

if TYPE_CHECKING:
    from app.core.engine.engine import Engine
    from app.core.server.flask.application import BackgroundService
    from app.extensions.handoff.peerings import Peerings
    from config import Settings as AllSettings


CONNECTORS = ("nixl", "nixl-push", "mooncake", "moriio", "p2p", "lmcache", "lmcache-mp")
"""Values of `kv-connector` that this extension plays."""


class Handoff(Extension):
    """Makes the engine of each rank hold, read and release blocks over a side channel."""

    name = "handoff"
    Settings = HandoffSettings
    requires = ("data_parallel",)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether the connector has a side channel, which a real engine refuses."""
        return settings.kvcache.kv_connector in CONNECTORS and settings.model.task == "generate"

    @cached_property
    def _peerings(self) -> Peerings:
        from app.extensions.handoff.peerings import Peerings  # imports ZMQ

        return Peerings(self.parts.settings, self.parts.loops)

    def simulated_engine(self, rank: int) -> Callable[..., Engine]:
        """Returns what makes the engine of a rank."""
        return self._peerings.engine_maker(rank)

    def services(self) -> Sequence[BackgroundService]:
        """Returns the side channels, and the services that announce them."""
        if self._peerings.replaces_answers:
            self.parts.pipeline.identity.transfer_address = self._peerings.transfer_address
        return self._peerings.services
