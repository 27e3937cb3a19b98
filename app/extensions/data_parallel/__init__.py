"""Data parallel ranks as vLLM has them: engines behind one port, or a supervisor of many ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, OtherEngine
from app.extensions.data_parallel.settings import SupervisorSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from config import Settings as AllSettings


class DataParallel(Extension):
    """Runs a simulated engine for each rank, and chooses one for each request.

    Every engine has its own recorder, KV cache, publisher of KV events, adapter slots and random
    numbers. Tokenizer, model, loaded adapters and HTTP server are shared.

    Where the ranks have separate ports, it runs their supervisor instead, if that has a port.
    """

    name = "data_parallel"
    Settings = SupervisorSettings

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._further: list[ServerParts] = []
        """The parts of each rank after the first one, whose parts are the server's own."""

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a port has several simulated ranks, or several ports a supervisor."""
        return has_several_engines(settings) or has_supervisor(settings)

    def engine(self) -> OtherEngine | None:
        """Returns the engines of all ranks as one engine; None where each has a port."""
        if not has_several_engines(self.parts.settings):
            return None
        from app.extensions.data_parallel.building import build_engines, parts_of_rank

        first = self.parts
        for rank in first.server.engine_ranks[1:]:
            self._further.append(parts_of_rank(first, rank))
        return build_engines([first, *self._further])

    def services(self) -> Sequence[BackgroundService]:
        """Returns the publishers of the ranks after the first one, or the supervisor."""
        parts = self.parts
        settings = parts.settings
        if has_supervisor(settings) and parts.rank == settings.server.ranks[0]:
            from app.extensions.data_parallel.supervisor import Supervisor, end_arbiter

            supervisor = Supervisor(settings, settings.section(SupervisorSettings), end_arbiter)
            parts.until_drained.append(supervisor.withdraw)
            return [supervisor]
        return [rank.publisher for rank in self._further if rank.publisher is not None]

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the memory of the ranks after the first one."""
        caches: dict[str, Bounded] = {}
        for parts in self._further:
            for owner in (parts.cache, parts.publisher):
                if owner is not None:
                    for name, cache in owner.caches.items():
                        caches[f"{name}, rank {parts.rank}"] = cache
        return caches


def has_several_engines(settings: AllSettings) -> bool:
    """Returns whether the port of a server has several simulated ranks."""
    server = settings.server
    return len(server.engine_ranks) > len(server.ranks) and not settings.engine.is_real


def has_supervisor(settings: AllSettings) -> bool:
    """Returns whether a server has several ports, and one more for their supervisor."""
    port = settings.section(SupervisorSettings).data_parallel_supervisor_port
    return port is not None and len(settings.server.ranks) > 1
