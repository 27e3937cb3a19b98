"""Turns a recorded exchange into rules of a script: start with `convert_exchange`.

Requests with several inputs are answered with vectors or scores: each text of an embedding and each
document of a reranking becomes a rule.
"""

from array import array
from base64 import b64decode
from collections.abc import Mapping
from sys import byteorder
from typing import Annotated, Any

from msgspec import Meta, Struct

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange, RecordedAnswer
from app.extensions.recording.exchange_rules import (
    ConvertedExchange,
    ExchangeError,
    conditions_of,
    convert_conversation,
    fault_of,
    reason_of,
    request_body,
)
from app.extensions.recording.providers.translators import Translator, translator_of
from app.extensions.recording.recorded_reply import BYTE_ORDER_MARK
from config.untrusted import INVALID, UntrustedDataError, decode_untrusted

PATH_OF_COUNTS = "/v1/messages/count_tokens"
PATHS_OF_INPUTS = ("/v1/embeddings", "/v2/embed", "/v1/rerank", "/rerank", "/v2/rerank")
"""Paths of requests whose inputs are answered one by one, with numbers."""


class TokenCount(Struct):
    """The answer to a count of the tokens of a message."""

    input_tokens: Annotated[int, Meta(ge=0, lt=2**31)]


def convert_exchange(exchange: Exchange, name: str) -> ConvertedExchange:
    """Returns the rules for an exchange; `name` is the name of its rule.

    Raises:
        ExchangeError: a rule cannot answer as recorded.
    """
    path = exchange.request.target.partition("?")[0]
    translate = translator_of(path)
    if translate is not None:
        return _convert_translated(exchange, name, translate)
    if path in PATHS_OF_INPUTS:
        return _convert_inputs(exchange, name)
    if path == PATH_OF_COUNTS:
        return _convert_count(exchange, name)
    return convert_conversation(exchange, name)


def _convert_translated(exchange: Exchange, name: str, translate: Translator) -> ConvertedExchange:
    """Returns the rules for an exchange of a provider's own API.

    Raises:
        ExchangeError: a rule cannot answer as recorded.
    """
    body = request_body(exchange.request)
    try:
        translated = translate(exchange, body)
    except INVALID as error:
        raise ExchangeError(f"it cannot be translated: {reason_of(error)}") from None
    converted = convert_exchange(translated.exchange, name)
    if translated.is_any_api:
        for rule in converted.rules:
            del rule["when"]["api"]
    converted.losses += translated.losses
    return converted


def _convert_count(exchange: Exchange, name: str) -> ConvertedExchange:
    """Returns the rule for a count of the tokens of a message; `name` is the name of the rule.

    Raises:
        ExchangeError: the exchange has no count.
    """
    try:
        when = conditions_of("messages", request_body(exchange.request))
    except INVALID as error:
        raise ExchangeError(f"the request is not a message: {reason_of(error)}") from None
    losses: list[str] = []
    if exchange.answer.status >= 400:
        action: Json = {"fault": fault_of(exchange.answer, losses)}
    else:
        try:
            count = decode_untrusted(exchange.answer.body(), type=TokenCount)
        except UntrustedDataError as error:
            raise ExchangeError(f"the response has no count: {reason_of(error)}") from None
        action = {"input_tokens": count.input_tokens}
    rule = {"name": name, "when": {**when, "api": "count_tokens"}, "then": action}
    return ConvertedExchange([rule], losses=losses)


def _convert_inputs(exchange: Exchange, name: str) -> ConvertedExchange:
    """Returns a rule for each input of a request; `name` is the name of its rule.

    Raises:
        ExchangeError: the exchange has no numbers of texts.
    """
    path = exchange.request.target.partition("?")[0]
    body = request_body(exchange.request)
    when: Json = {}
    if body.get("model"):
        when["model"] = str(body["model"])
    if path.endswith("/rerank"):
        when = {"api": "rerank", **when}
        texts = _texts(body.get("documents"))
        query = body.get("query")
        if not isinstance(query, str):
            raise ExchangeError("the query is not a text")
        conditions: list[object] = [
            [{"role": "user", "exact": query}, {"role": "document", "exact": text}]
            for text in texts
        ]
    else:
        when = {"api": "embeddings", **when}
        texts = _texts(body.get("texts" if path == "/v2/embed" else "input"))
        conditions = [{"role": "user", "exact": text} for text in texts]
    losses: list[str] = []
    actions = _actions(path, exchange.answer, len(texts), losses)
    rules: list[Json] = []
    seen: set[str] = set()
    for number, (text, condition) in enumerate(zip(texts, conditions, strict=True)):
        if text in seen:
            continue
        seen.add(text)
        rule_name = name if len(texts) == 1 else f"{name}, input {number + 1}"
        rules.append(
            {"name": rule_name, "when": {**when, "message": condition}, "then": actions[number]}
        )
    return ConvertedExchange(rules, losses=losses)


def _texts(inputs: object) -> list[str]:
    """Returns the texts of a request; documents can be objects with a text."""
    if isinstance(inputs, str):
        inputs = [inputs]
    texts: list[str] = []
    for item in inputs if isinstance(inputs, list) else (None,):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise ExchangeError("the inputs are not texts")
        texts.append(text)
    return texts


def _actions(path: str, answer: RecordedAnswer, count: int, losses: list[str]) -> list[Json]:
    """Returns the action for each of `count` inputs. Adds to `losses`.

    Raises:
        ExchangeError: the answer does not have these numbers.
    """
    if answer.status >= 400:
        return [{"fault": fault_of(answer, losses)}] * count
    try:
        body = decode_untrusted(answer.body().removeprefix(BYTE_ORDER_MARK), type=Json)
        if path.endswith("/rerank"):
            return _scores(body, count)
        if path == "/v2/embed":
            vectors = body["embeddings"]
            if isinstance(vectors, dict):
                vectors = vectors["float"]
        else:
            vectors = [item["embedding"] for item in sorted(body["data"], key=_index_of)]
        actions = [{"embedding": _numbers(vector)} for vector in vectors]
    except INVALID as error:
        raise ExchangeError(f"the response has no numbers: {reason_of(error)}") from None
    if len(actions) != count:
        raise ExchangeError(f"{count} inputs have {len(actions)} vectors")
    return actions


def _scores(body: Mapping[str, Any], count: int) -> list[Json]:
    """Returns the score of each document.

    With `top_n`, an answer has only the best documents. The other documents get a score that keeps
    them below, so that the same request gets the same answer.
    """
    results = body["results"] if "results" in body else body["data"]
    scores = {_index_of(result): float(result["relevance_score"]) for result in results}
    if not scores or not all(0 <= index < count for index in scores):
        raise ValueError(f"{count} documents have the scores of {sorted(scores)}")
    lowest = min(0.0, *scores.values())
    return [{"score": scores.get(index, lowest)} for index in range(count)]


def _index_of(item: Json) -> int:
    index: int = item["index"]
    return index


def _numbers(embedding: object) -> list[float]:
    """Returns a vector, which may be written as 32-bit floats in base64, with 9 digits.

    Raises:
        ValueError: it is not a vector.
    """
    if isinstance(embedding, str):
        numbers = array("f", b64decode(embedding, validate=True))
        if byteorder == "big":
            numbers.byteswap()
        embedding = [float(f"{number:.9g}") for number in numbers]
    if not isinstance(embedding, list) or not embedding:
        raise ValueError("an embedding is empty")
    return [float(number) for number in embedding]
