"""POST /generative_scoring and /v1/systemone: probabilities of labels as the first token of a
reply.

The engine generates one token behind every prompt. A hash of the prompt determines the
probabilities. Answers have their keys in vLLM's order.
"""

import json
import math
import string
from array import array
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import ClassVar, NamedTuple, cast

from msgspec import Struct

from app.core.api.chat.media import BuiltPrompt
from app.core.api.choice_state import ChoiceState
from app.core.api.pipeline import RequestPipeline
from app.core.api.writer import WholeWriter
from app.core.engine.vectors import LOGIT_RANGE
from app.core.protocol import rules
from app.core.protocol.coercion import ConversionError, JsonObject, convert_value
from app.core.protocol.common import ItemList, Usage
from app.core.protocol.completions import CompletionRequest, TokenIds
from app.core.protocol.decoding import RawRequest, Request
from app.core.protocol.options import Int64
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.response import Response
from app.core.server.http.route import Route, RouteDocs, post
from app.core.text.base import ChatOptions
from app.core.text.files import model_config
from config.settings import ModelSettings

LEAST_MASS = 0.5
"""Least probability of all labels together, in the whole vocabulary."""
MOST_QUESTIONS = 64
FIELDS = frozenset(("type", "instructions", "criteria"))
LABELS: Mapping[str, Sequence[str]] = {
    "choice": string.ascii_uppercase,
    "noul": ("yes", "no"),
    "score": string.digits,
}
"""Labels by type of question, as in vLLM; `noul` is a question of yes or no."""
REPLY_WITH = {
    "choice": "the letter of an option",
    "noul": "yes or no",
    "score": "the number of a level",
}
UNTHINKING: Mapping[str, object] = {"enable_thinking": False}
ARCHITECTURES = frozenset(
    ("Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
)
"""Architectures for which vLLM supports decisions."""


class LabelRequest(Request, kw_only=True):
    model: str | None = None
    cache_salt: str | None = None
    priority: Int64 = 0
    request_id: str = ""
    """Empty without one from the client: vLLM then draws a random id."""

    """These follow the fields of the routes."""

    def check_rules(self: "LabelRequest | RawRequest") -> None:
        rules.check_cache_salt(self.cache_salt)

    def as_completion(self, label_ids: TokenIds) -> CompletionRequest:
        """Builds the completion of one token whose log probabilities are read; prompts are added
        later.
        """
        same = {name: getattr(self, name) for name in LabelRequest.__struct_fields__}
        return CompletionRequest(**same, max_tokens=1, logprob_token_ids=label_ids)


class GenerativeScoringRequest(LabelRequest, kw_only=True):
    """The body of ``POST /generative_scoring``; items are texts or lists of token ids, never mixed."""

    query: str | list[int]
    items: list[str | list[int]]
    label_token_ids: list[int]
    apply_softmax: bool = True
    """True: probabilities among the labels; false: in the whole vocabulary."""
    item_first: bool = False
    add_special_tokens: bool = True

    lax_fields: ClassVar[Mapping[str, Hashable]] = {
        "items": lambda items: convert_value(list[str] | list[list[int]], items)
    }


def _questions(value: object) -> dict[str, JsonObject]:
    questions = convert_value(dict[str, dict[str, object]], value)
    for name, question in questions.items():
        if not isinstance(question.get("type"), str):
            raise ConversionError("a string", name, "type")
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

    lax_fields: ClassVar[Mapping[str, Hashable]] = {"questions": _questions}


class Decisions(Struct, kw_only=True):
    """An answer for each question, by its id. `created` is Unix seconds."""

    id: str
    object: str = "structured_decision"
    created: int
    model: str
    answers: Mapping[str, JsonObject]
    usage: Mapping[str, int]
    diagnostics: Mapping[str, JsonObject]
    """Total probability of a question's labels, and whether the likeliest token is one of its
    labels.
    """


def label_chances(prompt: TokenIds, labels: Sequence[int]) -> list[float]:
    """Probability of each label as the next token: pseudorandom, the same for the same prompt."""
    state = blake2b(array("I", prompt).tobytes(), digest_size=4)

    def drawn(salt: int) -> float:
        own = state.copy()
        own.update(b" %d" % salt)
        return int.from_bytes(own.digest(), "big") / 2**32

    weights = {label: math.exp(LOGIT_RANGE * (drawn(label) - 0.5)) for label in labels}
    mass = LEAST_MASS + (1 - LEAST_MASS) * drawn(-1)
    whole = math.fsum(weights.values()) / mass
    return [weights[label] / whole for label in labels]


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    named, generates = (
        model_config(settings.model).get("architectures"),
        settings.task == "generate",
    )
    may_decide = not isinstance(named, list) or not ARCHITECTURES.isdisjoint(named)

    @cache
    def known() -> "LabelTokens | None":
        return label_tokens(pipeline) if generates and may_decide else None

    def generative_scoring(context: RequestContext) -> Response:
        """The probability of the first label behind each item."""
        request = pipeline.decode(context, GenerativeScoringRequest)
        labels = request.label_token_ids
        accepted = pipeline.admit(request.as_completion(labels), context)
        prompts, identity = _prompts(pipeline, request), pipeline.identity
        meta = identity.response_meta(
            "generative-scoring", context, request.request_id, accepted.model
        )

        def answer(choices: Sequence[ChoiceState]) -> ItemList:
            tokens = sum(choice.tokens for choice in choices)
            count, data = sum(map(len, prompts)), list[Mapping[str, float | str]]()
            for index, prompt in enumerate(prompts):
                chances = label_chances(prompt, labels)
                score = chances[0] / math.fsum(chances) if request.apply_softmax else chances[0]
                data.append({"index": index, "object": "score", "score": score})
            usage = Usage(count, count + tokens, tokens, None, None)
            return ItemList(
                id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage
            )

        built = [BuiltPrompt(ids, "") for ids in prompts]
        return pipeline.submit(accepted, meta, built, WholeWriter(len(prompts), answer), context)

    def systemone(context: RequestContext) -> Response:
        """An answer with its probabilities for each question."""
        request = pipeline.decode(context, DecisionRequest)
        if (tokens := known()) is None:
            raise not_implemented("The model does not support structured decisions.")
        return _decide(pipeline, tokens, request, context)

    decision_docs = RouteDocs(
        body=(DecisionRequest,),
        example={
            "state": "a cat",
            "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}},
        },
        answer=Decisions,
    )
    decisions = post("/v1/systemone", systemone, docs=decision_docs)
    if not generates:
        return [decisions]
    scoring_docs = RouteDocs(
        body=(GenerativeScoringRequest,),
        example={"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
        answer=ItemList,
    )
    return [post("/generative_scoring", generative_scoring, docs=scoring_docs), decisions]


def _prompts(pipeline: RequestPipeline, request: GenerativeScoringRequest) -> list[TokenIds]:
    """Joins query and item of each prompt, cut so that one token fits behind.

    ApiError 400 for the request's own rules, in vLLM's order.
    """
    limits, labels = pipeline.limits, request.label_token_ids
    for label in labels:
        if not 0 <= label < limits.vocab_size:
            raise bad_request(
                f"label_token_id {label} is not in the vocabulary of {limits.vocab_size}"
            )
    for name in ("label_token_ids", "items"):
        if not getattr(request, name):
            raise bad_request(f"{name} must not be empty")
    limits.check_logprobs("logprobs", len(labels))
    encode, most = pipeline.tokenizer.encode, limits.max_model_len - 1
    query, made = request.query, []
    if isinstance(query, str):
        query = encode(query, request.add_special_tokens)
    for item in request.items:
        ids = encode(item, False) if isinstance(item, str) else item
        made.append((ids + query if request.item_first else query + ids)[:most])
        pipeline.slices.spend(len(made[-1]))
    return made


LabelTokens = tuple[Mapping[str, int], TokenIds]
"""The token of each label, and the end of a prompt behind which labels encode to these tokens."""


def label_tokens(pipeline: RequestPipeline) -> LabelTokens | None:
    """Returns None unless each label is one distinct token at the beginning of a reply."""
    tokenizer = pipeline.tokenizer
    if tokenizer.added_ids is None:
        return None
    probe = [{"role": "user", "content": "x"}]
    tail = tokenizer.encode_chat(probe, ChatOptions(chat_template_kwargs=UNTHINKING))
    last = max(
        (place for place, each in enumerate(tail) if each in tokenizer.added_ids), default=-1
    )
    tail = tail[last + 1 :]
    text = tokenizer.decode(tail, False)
    ids: dict[str, int] = {}
    for label in (label for labels in LABELS.values() for label in labels):
        *before, own = tokenizer.encode(text + label)
        if before != tail or own in ids.values():
            return None
        ids[label] = own
    return ids, tail


def _decide(
    pipeline: RequestPipeline, known: LabelTokens, request: DecisionRequest, context: RequestContext
) -> Response:
    tokens, tail = known
    accepted = pipeline.admit(request.as_completion(list(tokens.values())), context)
    if not 0 < len(request.questions) <= MOST_QUESTIONS:
        raise bad_request(
            f"questions: 1 to {MOST_QUESTIONS} are possible, got {len(request.questions)}"
        )
    questions = {name: _question(name, given) for name, given in request.questions.items()}
    for name in ("images", "audio", "videos"):
        if getattr(request, name):
            raise bad_request(f"This model does not take {name}.")
    prompts = [_prompt(pipeline, request, question, tail) for question in questions.values()]
    meta = pipeline.identity.response_meta("decision", context, request.request_id, accepted.model)

    def answer(choices: Sequence[ChoiceState]) -> Decisions:
        generated = sum(choice.tokens for choice in choices)
        answers, diagnostics = dict[str, JsonObject](), dict[str, JsonObject]()
        for (name, question), ids in zip(questions.items(), prompts, strict=True):
            chances = label_chances(ids, [tokens[label] for label in question.labels])
            answers[name], diagnostics[name] = question.answer(chances)
        return Decisions(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            answers=answers,
            usage={"input_tokens": sum(map(len, prompts)), "output_tokens": generated},
            diagnostics=diagnostics,
        )

    built = [BuiltPrompt(ids, "") for ids in prompts]
    return pipeline.submit(accepted, meta, built, WholeWriter(len(prompts), answer), context)


class Question(NamedTuple):
    """A valid question. `options` are names and descriptions; each has a label."""

    type: str
    instructions: object
    options: Sequence[tuple[str, object]]

    @property
    def labels(self) -> Sequence[str]:
        return LABELS[self.type][: len(self.options)]

    @property
    def text(self) -> str:
        """The question as the model reads it; an option without a description shows its name."""
        lines = [f"Question: {self.instructions}"] if self.instructions else []
        for label, (name, description) in zip(self.labels, self.options, strict=True):
            shown = (label, name if name != label else "", description)
            lines.append(": ".join(str(part) for part in shown if part))
        return "\n".join([*lines, f"Reply with {REPLY_WITH[self.type]} alone."])

    def answer(self, chances: Sequence[float]) -> tuple[JsonObject, JsonObject]:
        """Returns the answer and its diagnostics, by the labels' probabilities in the vocabulary."""
        mass, names = math.fsum(chances), [name for name, _ in self.options]
        shares = [chance / mass for chance in chances]
        best, answer = max(shares), JsonObject(type=self.type)
        if self.type == "choice":
            answer["choice"] = names[shares.index(best)]
        elif self.type == "noul":
            answer["noul"] = shares[0]
        else:
            answer["score"] = sum(level * share for level, share in enumerate(shares))
            answer["legend"] = dict(zip(self.labels, names, strict=True))
            names = list(self.labels)
        answer |= {
            "probabilities": dict(zip(names, shares, strict=True)),
            "confidence": best * mass,
        }
        return answer, {"label_mass": mass, "argmax_is_label": best * mass > 1 - mass}


def _question(name: str, given: JsonObject) -> Question:
    """Validates a question by vLLM's rules in its order. ApiError 400."""
    kind = str(given["type"])
    if unknown := sorted(given.keys() - FIELDS):
        raise bad_request(f"question {name!r}: unknown fields {unknown}")
    if not name:
        raise bad_request("a question needs an id that is not empty")
    if kind not in LABELS:
        raise bad_request(f"unknown question type {kind!r}; there are {', '.join(sorted(LABELS))}")
    options, most = _options(kind, given.get("criteria")), len(LABELS[kind])
    if not options:
        raise bad_request(f"question {name!r}: these criteria do not go with type {kind}")
    if len({option for option, _ in options}) < len(options):
        raise bad_request(f"question {name!r}: two options have one name")
    if len(options) > most:
        raise bad_request(f"question {name!r}: at most {most} options are possible")
    return Question(kind, given.get("instructions"), options)


def _options(kind: str, criteria: object) -> Sequence[tuple[str, object]]:
    """Returns name and description of each option; none for criteria that do not fit the type."""
    if kind == "noul" and (criteria is None or isinstance(criteria, dict)):
        told = criteria if isinstance(criteria, dict) else {}
        is_known = told.keys() <= {"true", "false"}
        return (("yes", told.get("true")), ("no", told.get("false"))) if is_known else ()
    if kind == "score" and isinstance(criteria, list) and len(criteria) >= 2:
        return [(str(level), None) for level in criteria]
    return list(criteria.items()) if kind == "choice" and isinstance(criteria, dict) else ()


def _prompt(
    pipeline: RequestPipeline, request: DecisionRequest, question: Question, tail: TokenIds
) -> TokenIds:
    """Returns state and question as a chat prompt.

    ApiError 400 where no reply would begin with a label.
    """
    options = {**UNTHINKING, **(request.chat_template_kwargs or {})}
    if options["enable_thinking"]:
        raise bad_request("a label is the first token of a reply: thinking must be off")
    state = (
        request.state
        if isinstance(request.state, str)
        else json.dumps(request.state, ensure_ascii=False)
    )
    pipeline.check_text(state)
    messages: list[dict[str, object]] = [{"role": "user", "content": f"{state}\n\n{question.text}"}]
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    ids = pipeline.tokenizer.encode_chat(messages, ChatOptions(chat_template_kwargs=options))
    if ids[len(ids) - len(tail) :] != tail:
        raise bad_request("this prompt ends in another way than those whose labels are known")
    return ids
