"""The beams of a request, which the model decides before the search begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from app.core.base.clock.pause import Pace
from app.core.engine.engine import Engine
from app.core.engine.request import EngineRequest, Model, Reply
from app.core.engine.simulated.logprobs import own_logprob
from app.core.text.base import Tokenizer
from app.extensions.beam_search.variants import BeamVariants


def beams_of(
    engine: Engine, tokenizer: Tokenizer, requests: Sequence[EngineRequest]
) -> list[Reply]:
    """Returns the beams of each prompt in turn, best first.

    Raises:
        UnsatisfiableSchemaError: No reply can have the requested form.
    """
    pause_if_due = Pace(engine.clock.now)
    width = requests[0].n
    replies: list[Reply] = []
    for start in range(0, len(requests), width):
        pause_if_due()
        replies += _beams_of_prompt(engine.model, tokenizer, requests[start : start + width])
    return replies


def _beams_of_prompt(
    model: Model, tokenizer: Tokenizer, requests: Sequence[EngineRequest]
) -> list[Reply]:
    """Returns the beams of one prompt, best first.

    A search looks for the likeliest replies, so that the same prompt always gets the same beams.
    Replies with thoughts or calls have no variants: a changed token could break their form. Their
    beams are separate replies.
    """
    greedy = [
        replace(request, sampling=replace(request.sampling, temperature=0.0))
        for request in requests
    ]
    best = model.reply(greedy[0])
    if best.spans:
        beams = [best]
        for number, request in enumerate(greedy[1:], 1):
            sampling = replace(request.sampling, seed=number)
            beams.append(model.reply(replace(request, sampling=sampling)))
        return sorted(beams, key=partial(_score, greedy[0]), reverse=True)
    variants = BeamVariants(best, tokenizer).first(len(requests) - 1)
    missing = len(requests) - 1 - len(variants)
    return [best, *variants, *[best] * missing]


def _score(request: EngineRequest, beam: Reply) -> float:
    """Returns a score that sorts beams as vLLM does: by cumulative logprob / length ** penalty.

    Log probabilities are negative, so the logarithm of their quotient falls as the beam improves.
    It is finite for any finite penalty, unlike the power.
    """
    likelihood = -sum(map(own_logprob, range(len(beam.ids))))
    if not likelihood:
        return math.inf
    length = len(request.prompt_ids) + len(beam.ids)
    return request.length_penalty * math.log(length) - math.log(likelihood)
