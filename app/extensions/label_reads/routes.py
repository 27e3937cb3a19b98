"""POST /generative_scoring and /v1/systemone: probabilities of labels as a reply's first token.

The engine generates one token behind every prompt. A hash of the prompt determines the
probabilities. Answers have their keys in vLLM's order.
"""

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import blake2b

from app.core.api.chat.media import BuiltPrompt
from app.core.api.choice_state import ChoiceState
from app.core.api.pipeline import RequestPipeline
from app.core.api.writer import WholeWriter
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import ItemList, usage_of
from app.core.protocol.completions import TokenIds
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, not_implemented
from app.core.server.http.response import Response
from app.core.server.http.route import Route, RouteDocs, post
from app.core.text.base import ChatOptions
from app.core.text.files import model_config
from app.extensions.label_reads.protocol import (
    DecisionRequest,
    Decisions,
    GenerativeScoringRequest,
)
from app.extensions.label_reads.questions import LABELS, Question, read_question
from config.settings import ModelSettings

MIN_LABEL_MASS = 0.5
"""Minimum probability of all labels together, in the whole vocabulary."""
MAX_QUESTIONS = 64
LOGIT_RANGE = 8.0
"""Difference of the largest and the smallest possible logit of a label."""
TEMPLATE_DEFAULTS: Mapping[str, object] = {"enable_thinking": False}
ARCHITECTURES = frozenset(
    ("Qwen3ForCausalLM", "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration")
)
"""Architectures for which vLLM supports decisions."""

LabelTokens = tuple[Mapping[str, int], TokenIds]
"""The token of each label, and the end of a prompt behind which labels encode to these tokens."""


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    """Returns the routes; a model for other tasks than generation only rejects decisions."""
    architectures = model_config(settings.model).get("architectures")
    generates = settings.task == "generate"
    may_decide = generates and (
        not isinstance(architectures, list) or not ARCHITECTURES.isdisjoint(architectures)
    )

    @cache
    def tokens() -> LabelTokens | None:
        return label_tokens(pipeline) if may_decide else None

    def generative_scoring(context: RequestContext) -> Response:
        """The probability of the first label behind each item."""
        request = pipeline.decode(context, GenerativeScoringRequest)
        return _score(pipeline, request, context)

    def systemone(context: RequestContext) -> Response:
        """An answer with its probabilities for each question."""
        request = pipeline.decode(context, DecisionRequest)
        label_ids = tokens()
        if label_ids is None:
            raise not_implemented("The model does not support structured decisions.")
        return _decide(pipeline, label_ids, request, context)

    decision_docs = RouteDocs(
        body=(DecisionRequest,),
        example={
            "state": "a cat",
            "questions": {"alive": {"type": "noul", "instructions": "Is it alive?"}},
        },
        answer=Decisions,
    )
    decision_route = post("/v1/systemone", systemone, docs=decision_docs)
    if not generates:
        return [decision_route]
    scoring_docs = RouteDocs(
        body=(GenerativeScoringRequest,),
        example={"query": "a", "items": ["b", "c"], "label_token_ids": [5, 6]},
        answer=ItemList,
    )
    return [post("/generative_scoring", generative_scoring, docs=scoring_docs), decision_route]


def label_probabilities(prompt: TokenIds, labels: Sequence[int]) -> list[float]:
    """Returns the probability of each label as the next token.

    The probabilities are pseudorandom, and the same for the same prompt.
    """
    prompt_hash = blake2b(array("I", prompt).tobytes(), digest_size=4)

    def draw(salt: int) -> float:
        salted_hash = prompt_hash.copy()
        salted_hash.update(b" %d" % salt)
        return int.from_bytes(salted_hash.digest(), "big") / 2**32

    weights = {label: math.exp(LOGIT_RANGE * (draw(label) - 0.5)) for label in labels}
    label_mass = MIN_LABEL_MASS + (1 - MIN_LABEL_MASS) * draw(-1)
    total_weight = math.fsum(weights.values()) / label_mass
    return [weights[label] / total_weight for label in labels]


def label_tokens(pipeline: RequestPipeline) -> LabelTokens | None:
    """Returns None unless each label is one distinct token at the beginning of a reply."""
    tokenizer = pipeline.tokenizer
    if tokenizer.added_ids is None:
        return None
    messages = [{"role": "user", "content": "x"}]
    options = ChatOptions(chat_template_kwargs=TEMPLATE_DEFAULTS)
    prompt = tokenizer.encode_chat(messages, options)
    start = 0
    for position, token_id in enumerate(prompt, start=1):
        if token_id in tokenizer.added_ids:
            start = position
    tail = prompt[start:]
    text = tokenizer.decode(tail, False)
    ids: dict[str, int] = {}
    for labels in LABELS.values():
        for label in labels:
            *prefix, label_id = tokenizer.encode(text + label)
            if prefix != tail or label_id in ids.values():
                return None
            ids[label] = label_id
    return ids, tail


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
            probabilities = label_probabilities(prompt, labels)
            score = probabilities[0]
            if request.apply_softmax:
                score /= math.fsum(probabilities)
            data.append({"index": index, "object": "score", "score": score})
        usage = usage_of(prompt_tokens, generated_tokens)
        return ItemList(id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage)

    built_prompts = [BuiltPrompt(ids, "") for ids in prompts]
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
    for label in request.label_token_ids:
        if not 0 <= label < limits.vocab_size:
            raise bad_request(
                f"label_token_id {label} is not in the vocabulary of {limits.vocab_size}"
            )
    for name in ("label_token_ids", "items"):
        if not getattr(request, name):
            raise bad_request(f"{name} must not be empty")
    limits.check_logprobs("logprobs", len(request.label_token_ids))
    encode = pipeline.tokenizer.encode
    max_prompt_tokens = limits.max_model_len - 1
    query = request.query
    if isinstance(query, str):
        query = encode(query, request.add_special_tokens)
    prompts: list[TokenIds] = []
    for item in request.items:
        ids = encode(item, False) if isinstance(item, str) else item
        prompt = ids + query if request.item_first else query + ids
        prompts.append(prompt[:max_prompt_tokens])
        pipeline.slices.spend(len(prompts[-1]))
    return prompts


def _decide(
    pipeline: RequestPipeline,
    label_ids: LabelTokens,
    request: DecisionRequest,
    context: RequestContext,
) -> Response:
    ids_by_label, tail = label_ids
    accepted = pipeline.admit(request.as_completion(list(ids_by_label.values())), context)
    if not 0 < len(request.questions) <= MAX_QUESTIONS:
        raise bad_request(
            f"questions: 1 to {MAX_QUESTIONS} are possible, got {len(request.questions)}"
        )
    questions = {name: read_question(name, fields) for name, fields in request.questions.items()}
    for name in ("images", "audio", "videos"):
        if getattr(request, name):
            raise bad_request(f"This model does not take {name}.")
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
        )

    built_prompts = [BuiltPrompt(ids, "") for ids in prompts]
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
        raise bad_request("thinking must be off: a label is the first token of a reply")
    state = request.state
    if not isinstance(state, str):
        state = json.dumps(state, ensure_ascii=False)
    pipeline.check_text(state)
    messages: list[dict[str, object]] = [{"role": "user", "content": f"{state}\n\n{question.text}"}]
    if request.instructions:
        messages.insert(0, {"role": "system", "content": request.instructions})
    options = ChatOptions(chat_template_kwargs=template_options)
    ids = pipeline.tokenizer.encode_chat(messages, options)
    if ids[len(ids) - len(tail) :] != tail:
        raise bad_request("the labels' tokens are not known for the end of this prompt")
    return ids
