"""Routes of the index of KV blocks: its state, and scores of the pods for a prompt."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TypeVar

from app.engine.kvcache.hashing import Placeholder
from app.kvindex.backend import BackendUnavailableError
from app.kvindex.scorer import PodScore
from app.kvindex.service import KvIndex
from app.kvindex.tokenization import TokenizationBusyError, TokenizationTimeoutError
from app.kvindex.tokenizers import UnknownModelError
from app.serving.api.chat.prompt import chat_options
from app.serving.api.pipeline import ChatRules
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import not_found, timed_out, unavailable
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, get, post
from app.serving.protocol.common import EXAMPLE_CHAT
from app.serving.protocol.decoding import Request, decode
from app.serving.protocol.tokenize import ScoreChatRequest, ScoreTextRequest, ScoreTokensRequest
from app.text.base import TokenizerLoadError
from config.settings import Settings

T = TypeVar("T", bound=Request)
Asked = ScoreTextRequest | ScoreChatRequest | ScoreTokensRequest


def routes(index: KvIndex, settings: Settings) -> list[Route]:
    at, model, rules = settings.kvindex, settings.model.model, ChatRules.of(settings.api)
    body, aliases = (
        BodyLimits.from_settings(settings.server),
        dict.fromkeys(settings.model.served_names, model),
    )

    def base(asked: Asked) -> str:
        return aliases.get(asked.model or model, asked.model or model)

    def speaker(asked: Asked) -> str:
        """Returns the model whose tokenizer reads the prompt; for an adapter its base model."""
        return model if base(asked) == model else index.index.base_model(base(asked))

    def scores(
        asked: Asked, tokens: Sequence[int], media: Sequence[Placeholder] = ()
    ) -> list[PodScore] | None:
        """Returns the scores, the best first; None for a prompt without a full block."""
        if len(tokens) < index.index.block_size:
            return None
        return index.index.score(
            base(asked),
            tokens,
            pods=asked.pods or (),
            lora=asked.lora,
            salt=asked.cache_salt,
            media=media,
        )

    def texts(asked: ScoreTextRequest) -> object:
        """The score of every pod that has the beginning of a text."""
        tokens = index.tokenization.encode(speaker(asked), asked.prompt, asked.add_special_tokens)
        return by_pod(scores(asked, tokens))

    def chats(asked: ScoreChatRequest) -> object:
        """The score of every pod that has the beginning of a conversation."""
        options = chat_options(asked, rules)
        if at.kv_index_chat_answer == "scores":
            tokens = index.tokenization.encode_chat(speaker(asked), asked.messages, options)
            return by_pod(scores(asked, tokens))
        text = index.tokenization.render_chat(speaker(asked), asked.messages, options)
        tokens = index.tokenization.encode(speaker(asked), text, asked.add_special_tokens)
        return {"podScores": by_pod(scores(asked, tokens)), "templated_messages": text}

    def ids(asked: ScoreTokensRequest) -> object:
        """The score of every pod for a prompt of token ids, in full."""
        media = [
            Placeholder(span.identifier, span.offset, span.length) for span in asked.media or ()
        ]
        cards = {}
        for best in best_ranks(scores(asked, asked.tokens, media) or ()):
            card = {
                "score": _short(best.score),
                "matched": best.matched,
                "match_ratio": best.match_ratio,
            }
            cards[best.pod] = {**card, "tiers": best.tiers, "rank": best.rank}
        return {"blocks": len(asked.tokens) // index.index.block_size, "scores": cards}

    def kv_index(context: RequestContext) -> Response:
        """The state of the index; sizes and pods are null while its backend does not answer."""
        return json_response({"backend": at.kv_index_backend, **index.stats()})

    def route(path: str, kind: type[T], answer: Callable[[T], object], docs: RouteDocs) -> Route:
        @wraps(answer)
        def handle(context: RequestContext) -> Response:
            asked = decode(body.read(context), context.content_type, kind)
            try:
                return json_response(answer(asked))
            except UnknownModelError as error:
                raise not_found(str(error), "model") from None
            except (TokenizerLoadError, TokenizationBusyError) as error:
                raise unavailable(str(error)) from None
            except TokenizationTimeoutError as error:
                raise timed_out(str(error)) from None
            except BackendUnavailableError as error:
                raise unavailable(f"The index cannot be asked now: {error}.") from None

        return post(path, handle, docs=docs)

    text_docs = RouteDocs(
        body=(ScoreTextRequest,),
        example={"prompt": "hello"},
        answer=dict[str, float] | None,
    )
    chat_docs = RouteDocs(body=(ScoreChatRequest,), example={"messages": EXAMPLE_CHAT})
    token_docs = RouteDocs(body=(ScoreTokensRequest,), example={"tokens": [1, 2, 3]})
    return [
        get("/kv/index", kv_index),
        route("/score_completions", ScoreTextRequest, texts, text_docs),
        route("/score_chat_completions", ScoreChatRequest, chats, chat_docs),
        route("/score_tokens", ScoreTokensRequest, ids, token_docs),
    ]


def best_ranks(scores: Sequence[PodScore]) -> list[PodScore]:
    best: dict[str, PodScore] = {}
    for score in scores:
        best.setdefault(score.pod, score)
    return list(best.values())


def by_pod(scores: Sequence[PodScore] | None) -> dict[str, float] | None:
    """Returns the score by pod, as llm-d's manager does; null without a full block."""
    return (
        None if scores is None else {score.pod: _short(score.score) for score in best_ranks(scores)}
    )


def _short(score: float) -> float:
    """Returns the same number, as an integer if it is whole."""
    return int(score) if score.is_integer() else score
