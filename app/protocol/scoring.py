"""The bodies of the pooling routes score and rerank (vllm-api.md section 8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import UNSET, UnsetType

from app.protocol.coercion import Misfit
from app.protocol.options import Natural
from app.protocol.pooling import PoolingFields, as_it_is

ScoreInput = str | dict[str, Any]
"""A text, or an object with the parts of a multimodal one under ``content``."""
ScoreInputs = ScoreInput | list[ScoreInput]

_PAIRS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))
_PART_TYPES = ("text", "image_url", "image_embeds", "video_url")


class ScoringRequest(PoolingFields, kw_only=True):
    """What score and rerank share; limits of 0 are none."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ScoreRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /score``; after decoding `queries` and `documents` have the pair, however named."""

    queries: ScoreInputs | UnsetType = UNSET
    documents: ScoreInputs | UnsetType = UNSET
    items: ScoreInputs | UnsetType = UNSET
    data_1: ScoreInputs | UnsetType = UNSET
    data_2: ScoreInputs | UnsetType = UNSET
    text_1: ScoreInputs | UnsetType = UNSET
    text_2: ScoreInputs | UnsetType = UNSET

    lax: ClassVar[Mapping[str, Any]] = {name: as_it_is for pair in _PAIRS for name in pair}

    def __post_init__(self) -> None:
        for names in _PAIRS:
            first, second = (getattr(self, name) for name in names)
            if _are_inputs(first) and _are_inputs(second):
                self.queries, self.documents = first, second
                return
        raise Misfit("a text or a list of texts", "documents" if _are_inputs(self.queries) else "queries")


def _one_input(value: Any) -> ScoreInput:
    if _is_input(value):
        return value  # type: ignore[no-any-return]
    raise Misfit("a text")


def _inputs(value: Any) -> ScoreInputs:
    if _are_inputs(value):
        return value  # type: ignore[no-any-return]
    raise Misfit("a text or a list of texts")


class RerankRequest(ScoringRequest, kw_only=True):
    """The body of ``POST /rerank``; a `top_n` of 0 is all."""

    query: ScoreInput
    documents: ScoreInputs
    top_n: Natural = 0

    lax: ClassVar[Mapping[str, Any]] = {"query": _one_input, "documents": _inputs}

    def check(self) -> None:
        if not _is_input(self.query) or not _are_inputs(self.documents):
            raise Misfit("texts")
        self.check_rules(self)


def _are_inputs(value: Any) -> bool:
    return all(map(_is_input, value)) if isinstance(value, list) else _is_input(value)


def _is_input(value: Any) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    content = value.get("content")
    return isinstance(content, list) and all(map(_is_part, content))


def _is_part(part: Any) -> bool:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind in _PART_TYPES and isinstance(part.get(kind), str if kind == "text" else str | dict)
