"""`indexer.v1.IndexerService/GetPodScores` over gRPC: the scores for llm-d's clients."""

from collections.abc import Callable, Mapping
from typing import Any

from app.core.server.http.context import RequestContext
from app.extensions.kv_index.indexer_proto import (
    GET_POD_SCORES,
    GetPodScoresResponse,
    Proto,
)
from app.extensions.kv_index.routed import RoutedTextRequest
from app.extensions.kv_index.routes import INDEX_ERRORS, KvIndexHandlers, api_error
from app.extensions.kv_index.service import KvIndex
from config.settings import Settings


def indexer_handlers(
    index: KvIndex, settings: Settings
) -> Mapping[str, Callable[[Any, RequestContext], Any]]:
    """Returns the handlers of the service; see `rpc.RpcHandlers`."""
    return {GET_POD_SCORES: IndexerRpc(index, settings).get_pod_scores}


class IndexerRpc:
    """Answers calls of the service."""

    def __init__(self, index: KvIndex, settings: Settings) -> None:
        self._index = index
        self._handlers = KvIndexHandlers(index, settings)

    def get_pod_scores(self, request: Proto, context: RequestContext) -> Proto:
        """Returns the score of each rank that has the beginning of the prompt, the best first.

        A pod with rank 0 only has no rank in the answer.
        """
        body = RoutedTextRequest(
            model=request.model_name or None,
            prompt=request.prompt,
            pods=list(request.pod_identifiers),
        )
        answer = GetPodScoresResponse()
        try:
            scores = self._handlers.text_scores(body)
            if not scores:
                return answer
            holders = self._index.index.backend.lookup([]).holders  # one call of Redis
        except INDEX_ERRORS as error:
            raise api_error(error) from None
        for score in scores:
            entry = answer.scores.add(pod=score.pod, score=score.score)
            if any(engine.rank for engine in holders.engines(score.pod)):
                entry.data_parallel_rank = score.rank
        return answer
