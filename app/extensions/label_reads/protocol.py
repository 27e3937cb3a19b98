"""Requests and answers of /generative_scoring and /v1/systemone."""

from collections.abc import Mapping
from typing import ClassVar, cast

from msgspec import UNSET, Struct, UnsetType

from app.core.protocol import rules
from app.core.protocol.coercion import ConversionError, JsonObject, LaxFields
from app.core.protocol.completions import CompletionRequest, TokenIds
from app.core.protocol.convert import convert_value
from app.core.protocol.decoding import RawRequest, Request
from app.core.protocol.options import Int64
from app.extensions.label_reads.decisions_protocol import convert_boolean


class LabelRequest(Request, kw_only=True):
    """Fields of both requests, which follow the fields of the routes."""

    model: str | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str = ""
    """Empty without one from the client: vLLM then draws a random id."""

    def check_rules(self: "LabelRequest | RawRequest") -> None:
        """Checks the cache salt."""
        rules.check_cache_salt(self.cache_salt)

    def as_completion(self, label_ids: TokenIds) -> CompletionRequest:
        """Returns the completion, without prompts, that reads the log probabilities of a token."""
        shared_fields = {name: getattr(self, name) for name in LabelRequest.__struct_fields__}
        return CompletionRequest(**shared_fields, max_tokens=1, logprob_token_ids=label_ids)


class GenerativeScoringRequest(LabelRequest, kw_only=True):
    """The body of ``POST /generative_scoring``.

    The items are either only texts, or only lists of token ids.
    """

    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    """True: probabilities among the labels; false: in the whole vocabulary."""
    item_first: bool = False
    add_special_tokens: bool = True

    lax_fields: ClassVar[LaxFields] = {
        "items": lambda items: convert_value(list[str] | list[list[int]], items)
    }


def _convert_questions(value: object) -> dict[str, JsonObject]:
    questions = convert_value(dict[str, dict[str, object]], value)
    for name, question in questions.items():
        if not isinstance(question.get("type"), str):
            raise ConversionError("a string", name, "type", kind="string_type")
    return cast(dict[str, JsonObject], questions)


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

    lax_fields: ClassVar[LaxFields] = {"questions": _convert_questions}


class JointDecisionRequest(DecisionRequest, kw_only=True, forbid_unknown_fields=True):
    """The same body since the version with `joint`, which is for diffusion models."""

    joint: bool = False

    lax_fields: ClassVar[LaxFields] = {**DecisionRequest.lax_fields, "joint": convert_boolean}


class Decisions(Struct, kw_only=True):
    """An answer for each question, by its id. `created` is Unix seconds."""

    id: str
    object: str = "structured_decision"
    created: int
    model: str
    answers: Mapping[str, JsonObject]
    usage: Mapping[str, int]
    diagnostics: Mapping[str, JsonObject]
    """Total probability of the labels, and whether the likeliest token is a label, by question."""
    joint: None | UnsetType = UNSET
