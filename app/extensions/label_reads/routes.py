"""POST /generative_scoring, /v1/systemone and /v1/decisions: probabilities of labels.

The engine generates one token behind every prompt, which is a label. Answers have their keys in
vLLM's order.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache

from msgspec import UNSET, UnsetType

from app.core.api.chat.media import BuiltPrompt
from app.core.api.choice_state import ChoiceState
from app.core.api.pipeline import RequestPipeline
from app.core.base.clock.pause import paced
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import ItemList, usage_of
from app.core.protocol.completions import TokenIds
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.response import Response
from app.core.server.http.route import Route, RouteDocs, post
from app.core.text.base import KeptTokens
from app.core.text.files import model_config
from app.extensions.label_reads.decisions import decide
from app.extensions.label_reads.decisions_protocol import DecisionsAnswer, DecisionsRequest
from app.extensions.label_reads.protocol import (
    DecisionRequest,
    Decisions,
    GenerativeScoringRequest,
    JointDecisionRequest,
)
from app.extensions.label_reads.questions import Question, read_question
from app.extensions.label_reads.reads import (
    MAX_QUESTIONS,
    TEMPLATE_DEFAULTS,
    LabelTokens,
    check_joint,
    label_probabilities,
    label_tokens,
    question_prompt,
)
from app.extensions.label_reads.rules import DecisionRules
from app.extensions.label_reads.whole_writer import WholeWriter
from config.settings import ModelSettings

MAX_PROMPT_TOKENS = 1 << 22
"""Most tokens of all prompts of a request: each item repeats the query, which takes memory."""


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    """Returns the routes; a model for other tasks than generation only rejects decisions."""
    generates = settings.task == "generate"
    rules = pipeline.version.rules(DecisionRules)
    may_decide = generates and supports_decisions(rules, settings.model)

    @cache
    def tokens() -> LabelTokens | None:
        return label_tokens(pipeline) if may_decide else None

    def generative_scoring(context: RequestContext) -> Response:
        """The probability of the first label behind each item."""
        request = pipeline.decode(context, GenerativeScoringRequest)
        return _score(pipeline, request, context)

    def systemone(context: RequestContext) -> Response:
        """An answer with its probabilities for each question."""
        request = pipeline.decode(context, rules.request_type)
        label_ids = tokens()
        if label_ids is None:
            raise not_implemented("The model does not support structured decisions.")
        return _decide(pipeline, label_ids, request, context)

    def decisions(context: RequestContext) -> Response:
        """An answer with its probabilities for each question, in OpenAI's form."""
        request = pipeline.decode(context, DecisionsRequest)
        label_ids = tokens()
        if label_ids is None:
            raise not_implemented("The model does not support the Decisions API")
        return decide(pipeline, label_ids, request, context)

    decision_docs = RouteDocs(
        body=(rules.request_type,),
        example={
            "state": "a cat",
            "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}},
        },
        answer=Decisions,
    )
    decisions_docs = RouteDocs(
        body=(DecisionsRequest,),
        example={
            "model": "",
            "input": "a cat",
            "questions": [{"type": "predicate", "instructions": "Is it alive?"}],
        },
        answer=DecisionsAnswer,
    )
    decision_routes = [
        post("/v1/systemone", systemone, docs=decision_docs),
        post("/v1/decisions", decisions, docs=decisions_docs),
    ]
    if not generates:
        return decision_routes
    scoring_docs = RouteDocs(
        body=(GenerativeScoringRequest,),
        example={"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
        answer=ItemList,
    )
    return [post("/generative_scoring", generative_scoring, docs=scoring_docs), *decision_routes]


def supports_decisions(rules: DecisionRules, model: str) -> bool:
    """Returns whether vLLM supports decisions of a model; true if its architecture is unknown."""
    architectures = model_config(model).get("architectures")
    if not isinstance(architectures, list):
        return True
    return not rules.architectures.isdisjoint(architectures)


def _score(
    pipeline: RequestPipeline, request: GenerativeScoringRequest, context: RequestContext
) -> Response:
    labels = request.label_token_ids
    accepted = pipeline.admit(request.as_completion(labels), context)
    prompts = _scoring_prompts(pipeline, request)
    meta = pipeline.identity.response_meta(
        "generative-scoring", context, request.request_id, accepted.model
    )

    def answer(choices: Sequence[ChoiceState]) -> ItemList:
        generated_tokens = sum(choice.tokens for choice in choices)
        prompt_tokens = sum(map(len, prompts))
        data: list[Mapping[str, float | str]] = []
        for index, prompt in enumerate(prompts):
            pipeline.spend(1 + len(prompt))
            probabilities = label_probabilities(prompt, labels)
            score = probabilities[0]
            if request.apply_softmax:
                score /= math.fsum(probabilities)
            data.append({"index": index, "object": "score", "score": score})
        usage = usage_of(prompt_tokens, generated_tokens)
        return ItemList(id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage)

    built_prompts = [BuiltPrompt(ids, "") for ids in paced(prompts)]
    writer = WholeWriter(len(prompts), answer)
    return pipeline.submit(accepted, meta, built_prompts, writer, context)


def _scoring_prompts(
    pipeline: RequestPipeline, request: GenerativeScoringRequest
) -> list[TokenIds]:
    """Joins query and item of each prompt, cut so that one token fits behind.

    Raises:
        ApiError: 400 for the first broken rule, in vLLM's order.
    """
    limits = pipeline.limits
    for label in paced(request.label_token_ids):
        if not 0 <= label < limits.vocab_size:
            raise bad_request(
                f"label_token_id {label} is out of vocabulary range [0, {limits.vocab_size})"
            )
    for name in ("label_token_ids", "items"):
        if not getattr(request, name):
            raise bad_request(f"{name} must not be empty")
    limits.check_logprobs("logprobs", len(request.label_token_ids))
    encode = pipeline.tokenizer.encode
    max_prompt_tokens = limits.max_model_len - 1
    kept = KeptTokens(max_prompt_tokens)
    query = request.query
    if isinstance(query, str):
        query = encode(query, request.add_special_tokens, kept)
    prompts: list[TokenIds] = []
    all_tokens = 0
    for item in paced(request.items):
        ids = encode(item, False, kept) if isinstance(item, str) else item
        prompt = ids + query if request.item_first else query + ids
        all_tokens += min(len(prompt), max_prompt_tokens)
        if all_tokens > MAX_PROMPT_TOKENS:
            raise bad_request(
                f"The prompts for all items together exceed {MAX_PROMPT_TOKENS} tokens.",
                "items",
            )
        prompts.append(prompt[:max_prompt_tokens])
        pipeline.spend(len(prompts[-1]))
    return prompts


def _decide(
    pipeline: RequestPipeline,
    label_ids: LabelTokens,
    request: DecisionRequest,
    context: RequestContext,
) -> Response:
    ids_by_label, tail = label_ids
    accepted = pipeline.admit(request.as_completion(list(ids_by_label.values())), context)
    if not request.questions:
        raise bad_request("questions: at least one question is required")
    if len(request.questions) > MAX_QUESTIONS:
        raise bad_request(
            f"questions: at most {MAX_QUESTIONS} are allowed, got {len(request.questions)}"
        )
    questions = {name: read_question(name, fields) for name, fields in request.questions.items()}
    for name in ("images", "audio", "videos"):
        if getattr(request, name):
            raise bad_request(f"This model does not support {name}.")
    joint: None | UnsetType = UNSET
    if isinstance(request, JointDecisionRequest):
        check_joint(request.joint)
        joint = None
    prompts = [
        _decision_prompt(pipeline, request, question, tail) for question in questions.values()
    ]
    meta = pipeline.identity.response_meta("decision", context, request.request_id, accepted.model)

    def answer(choices: Sequence[ChoiceState]) -> Decisions:
        generated_tokens = sum(choice.tokens for choice in choices)
        answers: dict[str, JsonObject] = {}
        diagnostics: dict[str, JsonObject] = {}
        for (name, question), prompt in zip(questions.items(), prompts, strict=True):
            labels = [ids_by_label[label] for label in question.labels]
            probabilities = label_probabilities(prompt, labels)
            answers[name], diagnostics[name] = question.answer(probabilities)
        return Decisions(
            id=meta.id,
            created=meta.created,
            model=meta.model,
            answers=answers,
            usage={"input_tokens": sum(map(len, prompts)), "output_tokens": generated_tokens},
            diagnostics=diagnostics,
            joint=joint,
        )

    built_prompts = [BuiltPrompt(ids, "") for ids in paced(prompts)]
    writer = WholeWriter(len(prompts), answer)
    return pipeline.submit(accepted, meta, built_prompts, writer, context)


def _decision_prompt(
    pipeline: RequestPipeline, request: DecisionRequest, question: Question, tail: TokenIds
) -> TokenIds:
    """Returns state and question as a chat prompt.

    Raises:
        ApiError: 400 where no reply would begin with a label.
    """
    template_options = {**TEMPLATE_DEFAULTS, **(request.chat_template_kwargs or {})}
    if template_options["enable_thinking"]:
        raise bad_request("thinking must be off, because the label is the first token of the reply")
    state = request.state
    if not isinstance(state, str):
        state = json.dumps(state, ensure_ascii=False)
    pipeline.check_text(state)
    return question_prompt(
        pipeline,
        state,
        question,
        template_options,
        tail=tail,
        instructions=request.instructions,
    )
