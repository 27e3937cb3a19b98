"""Data parallel ranks behind one port, as vLLM has them: an engine for each in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, OtherEngine

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import BackgroundService
    from config import Settings


class DataParallel(Extension):
    """Runs a simulated engine for each rank, and chooses one for each request.

    Every engine has its own recorder, KV cache, publisher of KV events, adapter slots and random
    numbers. Tokenizer, model, loaded adapters and HTTP server are shared.
    """

    name = "data_parallel"

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._further: list[ServerParts] = []
        """The parts of each rank after the first one, whose parts are the server's own."""

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns whether the port of this server has several simulated ranks."""
        server = settings.server
        return len(server.engine_ranks) > len(server.ranks) and not settings.engine.is_real

    def engine(self) -> OtherEngine:
        """Returns the engines of all ranks as one engine."""
        from app.extensions.data_parallel.building import build_engines, parts_of_rank

        first = self.parts
        for rank in first.server.engine_ranks[1:]:
            self._further.append(parts_of_rank(first, rank))
        return build_engines([first, *self._further])

    def services(self) -> Sequence[BackgroundService]:
        """Returns the publishers of the ranks after the first one."""
        return [parts.publisher for parts in self._further if parts.publisher is not None]

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the memory of the ranks after the first one."""
        caches: dict[str, Bounded] = {}
        for parts in self._further:
            for owner in (parts.cache, parts.publisher):
                if owner is not None:
                    for name, cache in owner.caches.items():
                        caches[f"{name}, rank {parts.rank}"] = cache
        return caches
