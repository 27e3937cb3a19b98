"""POST /generative_scoring and /v1/systemone: how likely labels are as the first token of a reply.

The engine generates one token behind every prompt. A hash of the prompt decides how likely the labels are.
"""

from __future__ import annotations

import json
import math
import string
from array import array
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, NoReturn

from msgspec import Struct

from app.api.builder import Prompt
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.writer import ResponseWriter
from app.engine.outputs import EngineOutput
from app.http.context import RequestContext
from app.http.errors import bad_request, not_implemented
from app.http.response import Response
from app.http.route import Route, post
from app.protocol.coercion import JsonObject
from app.protocol.common import Usage
from app.protocol.completions import CompletionRequest, TokenIds
from app.protocol.label_reads import (
    DecisionRequest,
    Decisions,
    DecisionUsage,
    Diagnostics,
    GenerativeScoringRequest,
    ItemScore,
    ScoreList,
    one_token,
)
from app.protocol.validation import ValidatedRequest
from app.tokenization import ChatOptions
from config.settings import ModelSettings

LOGIT_RANGE = 8.0
"""Logits of labels are between -4 and 4."""
LEAST_MASS = 0.5
"""Least probability of all labels together, in the whole vocabulary."""

Answer = Callable[[int], Struct]
"""Makes the answer, given how many tokens were generated."""


def label_logprobs(prompt: TokenIds, labels: Sequence[int]) -> list[float]:
    """Log probability of each label as the next token: by chance, but the same for the same prompt."""
    state = blake2b(array("I", prompt).tobytes(), digest_size=4)

    def drawn(salt: int) -> float:
        own = state.copy()
        own.update(b" %d" % salt)
        return int.from_bytes(own.digest(), "big") / 2**32

    weights = {label: math.exp(LOGIT_RANGE * (drawn(label) - 0.5)) for label in labels}
    mass = LEAST_MASS + (1 - LEAST_MASS) * drawn(-1)
    whole = math.fsum(weights.values()) / mass
    return [math.log(weights[label] / whole) for label in labels]


def label_softmax(logprobs: Sequence[float]) -> list[float]:
    """Probabilities among the labels alone."""
    weights = [math.exp(logprob) for logprob in logprobs]
    whole = math.fsum(weights)
    return [weight / whole for weight in weights]


class LabelWriter(ResponseWriter):
    """Has one token counted for each prompt, and answers with what `answer` makes."""

    def __init__(self, prompts: int, answer: Answer) -> None:
        super().__init__(prompts)
        self._answer = answer

    def chunk(self, output: EngineOutput) -> NoReturn:
        raise NotImplementedError("labels are not streamed")

    def closing(self) -> NoReturn:
        raise NotImplementedError("labels are not streamed")

    def whole(self) -> Struct:
        return self._answer(sum(choice.tokens for choice in self.choices))


def read_labels(
    frontend: Frontend,
    accepted: ValidatedRequest[CompletionRequest],
    meta: ResponseMeta,
    prompts: Sequence[TokenIds],
    answer: Answer,
    context: RequestContext,
) -> Response:
    """One token behind each prompt, and then the answer."""
    asked = [Prompt(ids, "") for ids in prompts]
    return frontend.submit(accepted, meta, asked, LabelWriter(len(prompts), answer), context)


def routes(frontend: Frontend) -> list[Route]:

    def generative_scoring(context: RequestContext) -> Response:
        """The probability of the first label behind each item."""
        asked = frontend.decode(context, GenerativeScoringRequest)
        accepted = frontend.admit(one_token(asked, asked.label_token_ids), context)
        _check(frontend, asked)
        prompts = _prompts(frontend, asked)
        meta = frontend.identity.head("generative-scoring", context, asked.request_id, accepted.model)

        def answer(tokens: int) -> ScoreList:
            count = sum(map(len, prompts))
            data = [ItemScore(index=index, score=_score(asked, ids)) for index, ids in enumerate(prompts)]
            usage = Usage(count, count + tokens, tokens, None, None)
            return ScoreList(id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage)

        return read_labels(frontend, accepted, meta, prompts, answer, context)

    return [post("/generative_scoring", generative_scoring)]


def _score(asked: GenerativeScoringRequest, prompt: TokenIds) -> float:
    logprobs = label_logprobs(prompt, asked.label_token_ids)
    return label_softmax(logprobs)[0] if asked.apply_softmax else math.exp(logprobs[0])


def _check(frontend: Frontend, asked: GenerativeScoringRequest) -> None:
    """The request's own rules, in vLLM's order. ApiError 400."""
    limits, labels = frontend.limits, asked.label_token_ids
    for label in labels:
        if not 0 <= label < limits.vocab_size:
            raise bad_request(f"label_token_id {label} is not in the vocabulary of {limits.vocab_size}")
    if not labels:
        raise bad_request("label_token_ids must contain at least one token id")
    if not asked.items:
        raise bad_request("items must contain at least one item")
    limits.check_logprobs("logprobs", len(labels))


def _prompts(frontend: Frontend, asked: GenerativeScoringRequest) -> list[TokenIds]:
    """Query and item of each prompt, cut to what leaves room for a token."""
    encode, most = frontend.tokenizer.encode, frontend.limits.max_model_len - 1
    query, made = asked.query, []
    if isinstance(query, str):
        query = encode(query, asked.add_special_tokens)
    for item in asked.items:
        ids = encode(item, False) if isinstance(item, str) else item
        made.append((ids + query if asked.item_first else query + ids)[:most])
        frontend.slices.spend(len(made[-1]))
    return made


MOST_QUESTIONS = 64
FIELDS = frozenset(("type", "instructions", "criteria"))
MEDIA = ("images", "audio", "videos")
PROBE = [{"role": "user", "content": "x"}]
UNTHINKING: Mapping[str, object] = {"enable_thinking": False}


class Option(NamedTuple):
    """What may be answered; without a description it is shown by its name."""

    name: str
    description: str | None = None


Options = list[Option]
Probabilities = Sequence[float]


class QuestionType(NamedTuple):
    """A kind of question: its labels, how criteria become options, and what is said with their chances."""

    labels: Sequence[str]
    reply_with: str
    options: Callable[[object], Options | None]
    """None for criteria that make none."""
    answer: Callable[[Options, Probabilities], JsonObject]


class Question(NamedTuple):
    """A question that makes sense."""

    id: str
    type: str
    instructions: str
    options: Options

    @property
    def labels(self) -> Sequence[str]:
        """One for each option."""
        return TYPES[self.type].labels[: len(self.options)]

    @property
    def text(self) -> str:
        """The question as the model reads it."""
        lines = [f"Question: {self.instructions}"] * bool(self.instructions)
        for label, option in zip(self.labels, self.options, strict=True):
            told = [label] if label == option.name else [label, option.name]
            lines.append(": ".join([*told, *([option.description] if option.description else [])]))
        return "\n".join([*lines, f"Reply with {TYPES[self.type].reply_with} alone."])


def _choice_options(criteria: object) -> Options | None:
    if not isinstance(criteria, dict) or not criteria:
        return None
    return [Option(name, None if told is None else str(told)) for name, told in criteria.items()]


def _truth_options(criteria: object) -> Options | None:
    given = {} if criteria is None else criteria
    if not isinstance(given, dict) or not given.keys() <= {"true", "false"}:
        return None
    told = {name: None if given.get(name) is None else str(given[name]) for name in ("true", "false")}
    return [Option("yes", told["true"]), Option("no", told["false"])]


def _level_options(criteria: object) -> Options | None:
    if not isinstance(criteria, list) or len(criteria) < 2:
        return None
    return [Option(str(level)) for level in criteria]


def _choice(options: Options, chances: Probabilities) -> JsonObject:
    best = options[chances.index(max(chances))].name
    return {"choice": best, "probabilities": {o.name: p for o, p in zip(options, chances, strict=True)}}


def _truth(options: Options, chances: Probabilities) -> JsonObject:
    return {"noul": chances[0], "probabilities": {"yes": chances[0], "no": chances[1]}}


def _level(options: Options, chances: Probabilities) -> JsonObject:
    return {
        "score": sum(level * chance for level, chance in enumerate(chances)),
        "legend": {str(level): option.name for level, option in enumerate(options)},
        "probabilities": {str(level): chance for level, chance in enumerate(chances)},
    }


TYPES: Mapping[str, QuestionType] = {
    "choice": QuestionType(string.ascii_uppercase, "the letter of an option", _choice_options, _choice),
    "noul": QuestionType(("yes", "no"), "yes or no", _truth_options, _truth),
    "score": QuestionType(string.digits, "the number of a level", _level_options, _level),
}
"""As vLLM has them; `noul` is a question of yes or no."""


ARCHITECTURES = frozenset(
    ("Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
)
"""Models that vLLM takes decisions from as from any that makes one token after another."""


def decision_routes(frontend: Frontend, settings: ModelSettings) -> list[Route]:
    decides = settings.task == "generate" and _may_decide(Path(settings.model))
    known: list[LabelTokens | None] = [] if decides else [None]

    def systemone(context: RequestContext) -> Response:
        """An answer with its probabilities for each question."""
        asked = frontend.decode(context, DecisionRequest)
        if not known:
            known.append(label_tokens(frontend))
        if known[0] is None:
            raise not_implemented("The model does not support structured decisions.")
        return _decide(frontend, known[0], asked, context)

    return [post("/v1/systemone", systemone)]


def _may_decide(folder: Path) -> bool:
    """True unless the model's config.json is here and names an architecture that vLLM does not support."""
    try:
        named = json.loads((folder / "config.json").read_bytes()).get("architectures")
    except (OSError, ValueError, AttributeError):
        return True
    return not isinstance(named, list) or not ARCHITECTURES.isdisjoint(named)


class LabelTokens(NamedTuple):
    """The token of each label, and what every prompt has to end with for them to be these."""

    ids: Mapping[str, int]
    tail: TokenIds


def label_tokens(frontend: Frontend) -> LabelTokens | None:
    """None where a label is not one token of its own at the beginning of a reply."""
    tokenizer = frontend.tokenizer
    if tokenizer.added_ids is None:
        return None
    tail = tokenizer.encode_chat(PROBE, ChatOptions(chat_template_kwargs=UNTHINKING))
    last = max((place for place, each in enumerate(tail) if each in tokenizer.added_ids), default=-1)
    tail = tail[last + 1 :]
    text = tokenizer.decode(tail, False)
    ids: dict[str, int] = {}
    for label in (label for each in TYPES.values() for label in each.labels):
        *before, own = tokenizer.encode(text + label)
        if before != tail or own in ids.values():
            return None
        ids[label] = own
    return LabelTokens(ids, tail)


def _decide(
    frontend: Frontend, tokens: LabelTokens, asked: DecisionRequest, context: RequestContext
) -> Response:
    accepted = frontend.admit(one_token(asked, list(tokens.ids.values())), context)
    questions = [_question(name, given) for name, given in _counted(asked).items()]
    for name in MEDIA:
        if getattr(asked, name):
            raise bad_request(f"This model does not take {name}.")
    prompts = [_prompt(frontend, asked, question, tokens.tail) for question in questions]
    meta = frontend.identity.head("decision", context, asked.request_id, accepted.model)

    def answer(generated: int) -> Decisions:
        answers, diagnostics = {}, {}
        for question, ids in zip(questions, prompts, strict=True):
            logprobs = label_logprobs(ids, [tokens.ids[label] for label in question.labels])
            answers[question.id], diagnostics[question.id] = _read(question, logprobs)
        return Decisions(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            answers=answers,
            usage=DecisionUsage(sum(map(len, prompts)), generated),
            diagnostics=diagnostics,
        )

    return read_labels(frontend, accepted, meta, prompts, answer, context)


def _counted(asked: DecisionRequest) -> Mapping[str, JsonObject]:
    if not asked.questions:
        raise bad_request("questions: at least one is needed")
    if len(asked.questions) > MOST_QUESTIONS:
        raise bad_request(f"questions: at most {MOST_QUESTIONS} are possible")
    return asked.questions


def _question(name: str, given: JsonObject) -> Question:
    """ApiError 400 for one that makes no sense, by vLLM's rules in its order."""
    kind, said = str(given["type"]), given.get("instructions", "")
    if unknown := sorted(given.keys() - FIELDS):
        raise bad_request(f"question {name!r}: unknown fields {unknown}")
    if not name:
        raise bad_request("a question needs an id that is not empty")
    if kind not in TYPES:
        raise bad_request(f"unknown question type {kind!r}; there are {', '.join(sorted(TYPES))}")
    options, most = TYPES[kind].options(given.get("criteria")), len(TYPES[kind].labels)
    if options is None:
        raise bad_request(f"question {name!r}: these criteria do not go with type {kind}")
    if len({option.name for option in options}) < len(options):
        raise bad_request(f"question {name!r}: two options have one name")
    if len(options) > most:
        raise bad_request(f"question {name!r}: at most {most} options are possible")
    return Question(name, kind, "" if said is None else str(said), options)


def _prompt(frontend: Frontend, asked: DecisionRequest, question: Question, tail: TokenIds) -> TokenIds:
    """The state and the question as a chat. ApiError 400 where a reply would not begin with a label."""
    options = {**UNTHINKING, **(asked.chat_template_kwargs or {})}
    if options["enable_thinking"]:
        raise bad_request("a label is the first token of a reply: thinking must be off")
    state = asked.state if isinstance(asked.state, str) else json.dumps(asked.state, ensure_ascii=False)
    frontend.check_text(state)
    messages: list[dict[str, object]] = [{"role": "user", "content": f"{state}\n\n{question.text}"}]
    if asked.instructions:
        messages.insert(0, {"role": "system", "content": asked.instructions})
    ids = frontend.tokenizer.encode_chat(messages, ChatOptions(chat_template_kwargs=options))
    if ids[len(ids) - len(tail) :] != tail:
        raise bad_request("this prompt ends in another way than those whose labels are known")
    return ids


def _read(question: Question, logprobs: Sequence[float]) -> tuple[JsonObject, Diagnostics]:
    chances, mass = label_softmax(logprobs), math.fsum(map(math.exp, logprobs))
    told = TYPES[question.type].answer(question.options, chances)
    likeliest = max(chances) * mass
    answer = {"type": question.type, **told, "confidence": likeliest}
    return answer, Diagnostics(mass, likeliest > 1 - mass)
