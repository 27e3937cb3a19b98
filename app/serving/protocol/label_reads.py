"""Routes that return probabilities of given next tokens: ``/generative_scoring`` and ``/v1/systemone``.

Answers have their keys in vLLM's order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from msgspec import Struct

from app.serving.protocol import rules
from app.serving.protocol.coercion import JsonObject, Misfit, convert_value
from app.serving.protocol.common import Usage
from app.serving.protocol.completions import CompletionRequest, TokenIds
from app.serving.protocol.decoding import RawRequest, Request
from app.serving.protocol.options import Int64


class LabelRequest(Request, kw_only=True):
    model: str | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str = ""
    """Empty without one from the client: vLLM then draws a random id."""

    def check_rules(self: LabelRequest | RawRequest) -> None:
        rules.check_cache_salt(self.cache_salt)

    def as_completion(self, label_ids: TokenIds) -> CompletionRequest:
        """Builds the completion of one token whose log probabilities are read; prompts are added later."""
        return CompletionRequest(
            model=self.model,
            max_tokens=1,
            logprob_token_ids=label_ids,
            cache_salt=self.cache_salt,
            priority=self.priority,
            request_id=self.request_id,
        )


def _items(value: object) -> object:
    return convert_value(list[str] | list[list[int]], value)


class GenerativeScoringRequest(LabelRequest, kw_only=True):
    """The body of ``POST /generative_scoring``; items are texts or lists of token ids, never mixed."""

    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    """True: probabilities among the labels; false: in the whole vocabulary."""
    item_first: bool = False
    add_special_tokens: bool = True

    lax: ClassVar[Mapping[str, Hashable]] = {"items": _items}
    order: ClassVar[str] = (
        "model query items label_token_ids apply_softmax item_first add_special_tokens cache_salt priority "
        "request_id"
    )


def _questions(value: object) -> dict[str, JsonObject]:
    if not isinstance(value, dict):
        raise Misfit("an object")
    for name, question in value.items():
        if not isinstance(question, dict):
            raise Misfit("an object", name)
        if not isinstance(question.get("type"), str):
            raise Misfit("a string", name, "type")
    return value


class DecisionRequest(LabelRequest, kw_only=True):
    """The body of ``POST /v1/systemone``.

    `state` is the subject of the questions, a text or any JSON; `questions` maps an id to `type`,
    `instructions` and `criteria`.
    """

    state: object
    questions: dict[str, JsonObject]
    instructions: str | None = None
    images: list[str] | None = None
    audio: list[str] | None = None
    videos: list[str] | None = None
    chat_template_kwargs: JsonObject | None = None

    lax: ClassVar[Mapping[str, Hashable]] = {"questions": _questions}
    order: ClassVar[str] = (
        "model state questions instructions images audio videos chat_template_kwargs cache_salt priority "
        "request_id"
    )


class ScoreList(Struct, kw_only=True):
    """A score for each item: the probability of the first label. `created` is Unix seconds."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: Sequence[JsonObject]
    usage: Usage


class Decisions(Struct, kw_only=True):
    """An answer for each question, by its id. `created` is Unix seconds."""

    id: str
    object: str = "structured_decision"
    created: int
    model: str
    answers: Mapping[str, JsonObject]
    usage: Mapping[str, int]
    diagnostics: Mapping[str, JsonObject]
    """Total probability of a question's labels, and whether the likeliest token is one of its labels."""
