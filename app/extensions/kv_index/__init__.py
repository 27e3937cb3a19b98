"""The index of KV blocks, which scores pods by the cached prefix of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app.core.extensions import Extension
from app.extensions.kv_index.settings import KVIndexSettings

if TYPE_CHECKING:
    from app.core.base import Bounded
    from app.core.base.metrics.instruments import Families
    from app.core.server.flask.application import BackgroundService, Understudy
    from app.core.server.http.route import Route
    from app.core.server.http.rpc import RpcHandlers
    from app.core.text.base import Tokenizer
    from app.extensions.kv_index.service import KvIndex
    from config import Settings as AllSettings

INDEXER = "indexer"
"""Role of a server that has an index only, and no model."""


class KvIndexing(Extension):
    """An index beside a server of a model, or alone in a server with the role of an indexer."""

    name = "kv_index"
    Settings = KVIndexSettings
    reads_kv_events = True

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether this server has an index."""
        section = settings.section(KVIndexSettings)
        return section.kv_index or section.role == INDEXER

    @classmethod
    def startup_lines(cls, settings: AllSettings) -> Sequence[str]:
        """Returns where the index receives events."""
        section = settings.section(KVIndexSettings)
        sources = []
        if section.bind_address:
            sources.append(f"pods that connect to {section.bind_address}")
        sources += section.kv_index_pods
        if section.kv_index and settings.kvcache.enable_kvcache:
            sources.append("this server")
        role = "this process has only the index" if section.role == INDEXER else "enabled"
        return [f"KV index: {role}; events from {', '.join(sources) or 'no pod'}"]

    @classmethod
    def application(cls, settings: AllSettings, tokenizer: Tokenizer) -> Understudy | None:
        """Returns the application of an indexer."""
        if settings.section(KVIndexSettings).role != INDEXER:
            return None
        from app.extensions.kv_index.indexer import build_indexer  # imports database clients

        return build_indexer(settings, tokenizer)

    @cached_property
    def _index(self) -> KvIndex:
        """The index. It follows the events of this server, too."""
        from app.extensions.kv_index.service import BatchListener, build_index

        parts = self.parts
        index = build_index(parts.settings, parts.tokenizer, parts.loops)
        if parts.event_source is not None:
            parts.event_source.listen(BatchListener(index, parts.settings.model.model))
        return index

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the routes of scores and of the state of the index."""
        from app.extensions.kv_index.routes import routes

        return {"kv_index": routes(self._index, self.parts.settings, self.parts.body)}

    def rpc_handlers(self) -> RpcHandlers:
        """Returns llm-d's gRPC service of scores."""

        def handlers() -> Mapping[str, Any]:
            from app.extensions.kv_index.indexer_rpc import indexer_handlers

            return indexer_handlers(self._index, self.parts.settings)

        return handlers

    def services(self) -> Sequence[BackgroundService]:
        """Returns the index, which subscribes to the events of pods."""
        return (self._index,)

    def metrics(self) -> Sequence[Families]:
        """Returns the families of the index."""
        return (self._index.metrics_text,)

    def caches(self) -> Mapping[str, Bounded]:
        """Returns the memory of the index."""
        return self._index.caches
