"""Routes of the index of KV blocks: its state, and scores of the pods for a prompt."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from app.core.api.chat.prompt import chat_options
from app.core.api.chat.rules import ChatRules
from app.core.engine.kvcache.hashing import Placeholder
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.protocol.decoding import Request, decode
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, not_found, timed_out, unavailable
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, get, post
from app.core.text.base import TokenizerLoadError
from app.extensions.kv_index.backend import BackendUnavailableError
from app.extensions.kv_index.routed import (
    RoutedChatRequest,
    RoutedRequest,
    RoutedTextRequest,
    RoutedTokensRequest,
)
from app.extensions.kv_index.scorer import PodScore
from app.extensions.kv_index.service import KvIndex
from app.extensions.kv_index.settings import KVIndexSettings
from app.extensions.kv_index.tokenization import TokenizationBusyError, TokenizationTimeoutError
from app.extensions.kv_index.tokenizers import UnknownModelError
from config.settings import Settings

T = TypeVar("T", bound=Request)
INDEX_ERRORS = (
    UnknownModelError,
    TokenizerLoadError,
    TokenizationBusyError,
    TokenizationTimeoutError,
    BackendUnavailableError,
)
"""Errors of the index that are answered with a status."""


def routes(index: KvIndex, settings: Settings, body: BodyLimits) -> list[Route]:
    """Returns the routes of the index of KV blocks."""
    handlers = KvIndexHandlers(index, settings)

    def score_route(
        path: str, request_type: type[T], score: Callable[[T], object], docs: RouteDocs
    ) -> Route:
        @wraps(score)
        def handle(context: RequestContext) -> Response:
            request = decode(body.read(context), context.content_type, request_type)
            try:
                return json_response(score(request))
            except INDEX_ERRORS as error:
                raise api_error(error) from None

        return post(path, handle, docs=docs)

    text_docs = RouteDocs(
        body=(RoutedTextRequest,),
        example={"prompt": "hello"},
        answer=dict[str, float],
    )
    chat_docs = RouteDocs(body=(RoutedChatRequest,), example={"messages": EXAMPLE_CHAT})
    token_docs = RouteDocs(body=(RoutedTokensRequest,), example={"tokens": [1, 2, 3]})
    return [
        get("/kv/index", handlers.kv_index),
        score_route("/score_completions", RoutedTextRequest, handlers.score_text, text_docs),
        score_route("/score_chat_completions", RoutedChatRequest, handlers.score_chat, chat_docs),
        score_route("/score_tokens", RoutedTokensRequest, handlers.score_tokens, token_docs),
    ]


def api_error(error: Exception) -> ApiError:
    """Returns the response to one of `INDEX_ERRORS`."""
    if isinstance(error, UnknownModelError):
        return not_found(str(error), "model")
    if isinstance(error, TokenizationTimeoutError):
        return timed_out(str(error))
    if isinstance(error, BackendUnavailableError):
        return unavailable(f"The index is temporarily unavailable: {error}.")
    return unavailable(str(error))


class KvIndexHandlers:
    """Answers the requests for the state of the index, and for scores of the pods."""

    def __init__(self, index: KvIndex, settings: Settings) -> None:
        self._index = index
        self._settings = settings.section(KVIndexSettings)
        self._chat_rules = ChatRules.of(settings.api)
        self._model = settings.model.model
        self._aliases = dict.fromkeys(settings.model.served_names, self._model)

    def kv_index(self, context: RequestContext) -> Response:
        """The state of the index; sizes and pods are null while its backend does not answer."""
        return json_response({"backend": self._settings.kv_index_backend, **self._index.stats()})

    def score_text(self, request: RoutedTextRequest) -> object:
        """The score of every pod that has the beginning of a text."""
        return by_pod(self.text_scores(request))

    def text_scores(self, request: RoutedTextRequest) -> list[PodScore]:
        """Returns the scores for a text, the best first."""
        tokens = self._index.tokenization.encode(
            self._tokenizer_model(request), request.prompt, request.add_special_tokens
        )
        return self._scores(request, tokens)

    def score_chat(self, request: RoutedChatRequest) -> object:
        """The score of every pod that has the beginning of a conversation."""
        options = chat_options(request, self._chat_rules)
        model = self._tokenizer_model(request)
        tokenization = self._index.tokenization
        if self._settings.kv_index_chat_answer == "scores":
            tokens = tokenization.encode_chat(model, request.messages, options)
            return by_pod(self._scores(request, tokens))
        text = tokenization.render_chat(model, request.messages, options)
        tokens = tokenization.encode(model, text, request.add_special_tokens)
        scores = by_pod(self._scores(request, tokens))
        return {"podScores": scores, "templated_messages": text}

    def score_tokens(self, request: RoutedTokensRequest) -> object:
        """The score of every pod for a prompt of token IDs, in full."""
        media = [
            Placeholder(span.identifier, span.offset, span.length) for span in request.media or ()
        ]
        cards = {}
        for pod_score in best_ranks(self._scores(request, request.tokens, media)):
            cards[pod_score.pod] = {
                "score": _integer_if_whole(pod_score.score),
                "matched": pod_score.matched,
                "match_ratio": pod_score.match_ratio,
                "tiers": pod_score.tiers,
                "rank": pod_score.rank,
            }
        return {"blocks": len(request.tokens) // self._index.index.block_size, "scores": cards}

    def _base_model(self, request: RoutedRequest) -> str:
        """Returns the model of a request; a served name stands for the server's model."""
        name = request.model or self._model
        return self._aliases.get(name, name)

    def _tokenizer_model(self, request: RoutedRequest) -> str:
        """Returns the model whose tokenizer reads the prompt; for an adapter its base model."""
        model = self._base_model(request)
        if model == self._model:
            return model
        return self._index.index.base_model(model)

    def _scores(
        self, request: RoutedRequest, tokens: Sequence[int], media: Sequence[Placeholder] = ()
    ) -> list[PodScore]:
        """Returns the scores, the best first; none for a prompt without a full block."""
        if len(tokens) < self._index.index.block_size:
            return []
        if request.routed_to:
            self._add_routed(request.routed_to, request, tokens, media)
        return self._index.index.score(
            self._base_model(request),
            tokens,
            pods=request.pods or (),
            lora=request.lora,
            salt=request.cache_salt,
            media=media,
        )

    def _add_routed(
        self,
        pod: str,
        request: RoutedRequest,
        tokens: Sequence[int],
        media: Sequence[Placeholder],
    ) -> None:
        """Counts the blocks of the prompt as cached on a pod.

        Raises:
            ApiError: 400 if routed prompts are not kept.
        """
        index = self._index.index
        if not index.speculation.lifetime_s:
            raise bad_request(
                "Routed prompts are disabled because kv-index-routed-lifetime is 0.", "routed_to"
            )
        model = self._base_model(request)
        keys = index.block_keys(
            model,
            tokens,
            lora=request.lora,
            salt=request.cache_salt,
            media=media,
        )
        index.add_routed(model, keys, pod=pod, rank=request.routed_rank)


def best_ranks(scores: Sequence[PodScore]) -> list[PodScore]:
    """Returns the first score of each pod, which is that of its best rank."""
    best: dict[str, PodScore] = {}
    for score in scores:
        best.setdefault(score.pod, score)
    return list(best.values())


def by_pod(scores: Sequence[PodScore]) -> dict[str, float]:
    """Returns the score by pod, as llm-d's manager does."""
    return {score.pod: _integer_if_whole(score.score) for score in best_ranks(scores)}


def _integer_if_whole(score: float) -> float:
    """Returns the same number, as an integer if it is whole."""
    if score.is_integer():
        return int(score)
    return score
