"""Data-parallel ranks as vLLM has them: engines behind one port, or a supervisor of many ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension, OtherEngine
from app.extensions.data_parallel.settings import SupervisorSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.server.flask.application import BackgroundService
    from app.extensions.data_parallel.building import PortParts
    from config import Settings as AllSettings


class DataParallel(Extension):
    """Runs an engine for each rank of one port, or the supervisor of ranks with separate ports."""

    name = "data_parallel"
    Settings = SupervisorSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a port has several simulated ranks, or several ports a supervisor."""
        server = settings.server
        if len(server.ranks) > 1:
            section = settings.section(SupervisorSettings)
            return section.data_parallel_supervisor_port is not None
        return server.engines_per_port > 1 and not settings.engine.is_real

    @cached_property
    def _port(self) -> PortParts:
        from app.extensions.data_parallel.building import parts_of_port

        return parts_of_port(self.parts)

    def engine(self) -> OtherEngine | None:
        """Returns the engines of all ranks of this port as one engine."""
        return self._port.engine()

    def services(self) -> Sequence[BackgroundService]:
        """Returns the publishers of the ranks after the first one, or the supervisor."""
        return self._port.services()

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the memory of the ranks after the first one."""
        return self._port.caches()
