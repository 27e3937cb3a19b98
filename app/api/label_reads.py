"""POST /generative_scoring: how likely a label is as the token behind each item.

The engine generates one token behind every prompt. A hash of the prompt decides how likely the labels are.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import NoReturn

from msgspec import Struct

from app.api.builder import Prompt
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.api.pieces import Holes
from app.api.writer import ResponseWriter
from app.engine.outputs import EngineOutput
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.http.route import Route, post
from app.protocol.common import Usage
from app.protocol.completions import CompletionRequest, TokenIds
from app.protocol.label_reads import GenerativeScoringRequest, ItemScore, ScoreList, one_token
from app.protocol.validation.generation import ValidatedRequest

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

    def whole(self, holes: Holes) -> Struct:
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
    return frontend.generate(accepted, meta, asked, LabelWriter(len(prompts), answer), context)


def routes(frontend: Frontend) -> list[Route]:

    def generative_scoring(context: RequestContext) -> Response:
        """The probability of the first label behind each item."""
        asked = frontend.decode(context, GenerativeScoringRequest)
        accepted = frontend.accept(one_token(asked, asked.label_token_ids), context)
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
