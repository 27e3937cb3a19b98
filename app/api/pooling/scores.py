"""POST /score and POST /rerank: how well texts match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import UnsetType

from app.api.frontend import Frontend
from app.api.pooling.places import (
    check_count,
    enter,
    fitted,
    not_empty,
    of_pairs,
    struck,
    take_places,
    text_ids,
)
from app.api.pooling.writer import list_reply
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response, json_response
from app.http.route import Handler
from app.pooling.model import Bag, logit, sigmoid
from app.pooling.numbers import Turns
from app.protocol.pooling import RerankRequest, ScoreInputs, ScoreRequest, ScoringRequest, TokenIds

Pair = tuple[TokenIds, TokenIds]
T = TypeVar("T")


class Matched(NamedTuple):
    """A score for each pair; how many prompts it took, what each of them is, and the tokens of all."""

    scores: list[float]
    prompts: int
    prompt: Callable[[int], TokenIds]
    tokens: int


def score(frontend: Frontend, cross_encoder: bool) -> Handler:
    """The view of /score. A cross-encoder reads each pair as one prompt, others each text on its own."""

    def create_score(context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        asked = frontend.decode(context, ScoreRequest)
        name = enter(frontend, asked)
        queries, documents = _texts(asked.queries), _texts(asked.documents)
        matched = _matched(frontend, asked, queries, documents, cross_encoder)
        head = frontend.identity.head("score", context, asked.request_id, name)
        scripted = of_pairs(frontend, _pairs(queries, documents), asked.model or name, context)
        gone = take_places(frontend, context, asked, head, matched.prompts, matched.prompt, scripted)
        if gone is not None:
            return gone
        items = (
            b"," * bool(index) + msgspec.json.encode({"index": index, "object": "score", "score": value})
            for index, value in enumerate(scripted.scored(matched.scores))
        )
        answer = list_reply(head, items, scripted.tokens(matched.tokens), frontend.responder.headers)
        return struck(answer, context)

    return create_score


def rerank(frontend: Frontend, cross_encoder: bool) -> Handler:
    """The view of /rerank; `cross_encoder` as for `score`."""

    def create_rerank(context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        asked = frontend.decode(context, RerankRequest)
        name = enter(frontend, asked)
        queries, documents = _texts(asked.query), _texts(asked.documents)
        matched = _matched(frontend, asked, queries, documents, cross_encoder)
        head = frontend.identity.head("score", context, asked.request_id, name)
        scripted = of_pairs(frontend, _pairs(queries, documents), asked.model or name, context)
        gone = take_places(frontend, context, asked, head, matched.prompts, matched.prompt, scripted)
        if gone is not None:
            return gone
        scores = scripted.scored(matched.scores)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        results = [
            {
                "index": index,
                "document": {"text": documents[index], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in best[: asked.top_n or None]
        ]
        tokens = scripted.tokens(matched.tokens)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"id": head.id, "model": name, "usage": usage, "results": results}
        return struck(json_response(answer, 200, frontend.responder.headers), context)

    return create_rerank


def _matched(
    frontend: Frontend, asked: ScoringRequest, queries: list[str], documents: list[str], cross_encoder: bool
) -> Matched:
    """How well all pairs match. ApiError 400 when the texts make no pairs."""
    if len(queries) not in (1, len(documents)) or not documents:
        raise bad_request("one text goes with one or many, many with as many; there must be at least one")
    check_count(len(documents), "documents")
    first = _ids(frontend, asked, queries, _limit(frontend, asked, "max_tokens_per_query"))
    second = _ids(frontend, asked, documents, _limit(frontend, asked, "max_tokens_per_doc"))
    if cross_encoder:
        pairs = [
            _as_one_prompt(frontend, asked, pair) for pair in Turns().each(_pairs(first, second), _tokens)
        ]
        logits, tokens = list(_logits(pairs)), sum(map(_tokens, pairs))
        count, prompt = len(pairs), lambda index: pairs[index][0] + pairs[index][1]
    else:
        first, second = (
            [not_empty(fitted(frontend, asked, ids)) for ids in side] for side in (first, second)
        )
        logits, texts = list(_logits(_pairs(first, second))), first + second
        count, prompt, tokens = len(texts), texts.__getitem__, sum(map(len, texts))
    scores = logits if asked.use_activation is False else list(map(sigmoid, logits))
    return Matched(scores, count, prompt, tokens)


def _pairs(queries: Sequence[T], documents: Sequence[T]) -> Iterator[tuple[T, T]]:
    """Each query with its document, or the only one with every document."""
    first = repeat(queries[0], len(documents)) if len(queries) == 1 else queries
    return zip(first, documents, strict=True)


def _logits(pairs: Iterable[Pair]) -> Iterator[float]:
    last: TokenIds = []
    query_bag = Bag(last)
    for query, document in Turns().each(pairs, _tokens):
        if not query and not document:
            raise bad_request("a pair of texts has no tokens")
        if query is not last:  # one query with many documents is counted once
            last, query_bag = query, Bag(query)
        yield logit(query_bag, Bag(document))


def _as_one_prompt(frontend: Frontend, asked: ScoringRequest, pair: Pair) -> Pair:
    """What is left of both texts when they are truncated as one. ApiError 400 when it exceeds the context."""
    query, document = pair
    keep = asked.truncate_prompt_tokens
    if _tokens(pair) <= (frontend.limits.max_model_len if keep is None or keep < 0 else keep):
        return pair
    both = fitted(frontend, asked, query + document)
    split = len(query) - (_tokens(pair) - len(both) if asked.truncation_side == "left" else 0)
    return both[: max(0, split)], both[max(0, split) :]


def _ids(frontend: Frontend, asked: ScoringRequest, texts: list[str], limit: int | None) -> list[TokenIds]:
    bounded = limit is None and asked.truncate_prompt_tokens is None
    return [ids[:limit] for ids in Turns().each(text_ids(frontend, texts, True, bounded), len)]


def _limit(frontend: Frontend, asked: ScoringRequest, name: str) -> int | None:
    limit: int = getattr(asked, name)
    if not 0 <= limit < frontend.limits.max_model_len:
        raise bad_request(f"{name} must be at least 0 and below {frontend.limits.max_model_len}, got {limit}")
    return limit or None


def _tokens(pair: Pair) -> int:
    return len(pair[0]) + len(pair[1])


def _texts(inputs: ScoreInputs | UnsetType) -> list[str]:
    """The texts of one side. ApiError 400 for parts: only models that take more than text read them."""
    texts = [text for text in (inputs if isinstance(inputs, list) else [inputs]) if isinstance(text, str)]
    if isinstance(inputs, list) and len(texts) < len(inputs) or isinstance(inputs, dict):
        raise bad_request("parts of content are for models that take more than text")
    return texts
