"""POST /v1/decisions: each question is read as the choice of a letter."""

import json
import math
from collections.abc import Sequence

from app.core.api.chat.media import BuiltPrompt
from app.core.api.choice_state import ChoiceState
from app.core.api.pipeline import RequestPipeline
from app.core.engine.outputs import Started
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request
from app.core.server.http.response import Response
from app.extensions.label_reads import decisions_protocol as wire
from app.extensions.label_reads.questions import LABELS, Question
from app.extensions.label_reads.reads import (
    MAX_QUESTIONS,
    TEMPLATE_DEFAULTS,
    LabelTokens,
    check_joint,
    label_probabilities,
    question_prompt,
)
from app.extensions.label_reads.whole_writer import WholeWriter

MAX_OPTIONS = len(LABELS["choice"])


class DecisionsWriter(WholeWriter):
    """Writes the answer to all questions; each is a choice with its own prompt."""

    def __init__(
        self,
        request: wire.DecisionsRequest,
        *,
        model: str,
        prompts: Sequence[Sequence[int]],
        probabilities: Sequence[Sequence[float]],
    ) -> None:
        super().__init__(len(prompts), self._answer_of)
        self._request = request
        self._model = model
        self._prompts = prompts
        self._probabilities = probabilities
        self._details = wire.InputDetails(cached_tokens=0, cache_write_tokens=0)

    def record_start(self, output: Started, keep_first: bool = True) -> None:
        """Counts the cached tokens of one prompt."""
        super().record_start(output, keep_first)
        self._details.cached_tokens += output.cached_tokens
        self._details.cache_write_tokens += output.created_tokens

    def _answer_of(self, choices: Sequence[ChoiceState]) -> wire.DecisionsAnswer:
        answers: list[wire.AnyAnswer] = []
        for question, read in zip(self._request.questions, self._probabilities, strict=True):
            answers.append(answer_of(question, read))
        input_tokens = sum(map(len, self._prompts))
        output_tokens = sum(choice.tokens for choice in choices)
        usage = wire.DecisionsUsage(
            input_tokens=input_tokens,
            input_tokens_details=self._details,
            output_tokens=output_tokens,
            output_tokens_details=wire.OutputDetails(),
            total_tokens=input_tokens + output_tokens,
        )
        return wire.DecisionsAnswer(model=self._model, answers=answers, usage=usage)


def decide(
    pipeline: RequestPipeline,
    label_tokens: LabelTokens,
    request: wire.DecisionsRequest,
    context: RequestContext,
) -> Response:
    """Answers the questions.

    Raises:
        ApiError: 404 for an unknown model; 400 for questions that this model cannot answer.
    """
    ids_by_label, tail = label_tokens
    accepted = pipeline.admit(request.as_completion(list(ids_by_label.values())), context)
    if len(request.questions) > MAX_QUESTIONS:
        raise bad_request(f"questions: at most {MAX_QUESTIONS} are allowed for this model")
    questions = [labeled(question) for question in request.questions]
    check_joint(request.joint)
    text = request.text
    pipeline.check_text(text)
    prompts = []
    probabilities = []
    for question in questions:
        pipeline.check_text(text + question.text)
        prompt = question_prompt(pipeline, text, question, TEMPLATE_DEFAULTS, tail=tail)
        labels = [ids_by_label[label] for label in question.labels]
        prompts.append(prompt)
        probabilities.append(label_probabilities(prompt, labels))
    meta = pipeline.identity.response_meta("decision", context, "", accepted.model)
    writer = DecisionsWriter(
        request, model=meta.model, prompts=prompts, probabilities=probabilities
    )
    built_prompts = [BuiltPrompt(ids, "") for ids in prompts]
    return pipeline.submit(accepted, meta, built_prompts, writer=writer, context=context)


def labeled(question: wire.AnyQuestion) -> Question:
    """Returns the choice of a letter that the model reads for a question.

    Raises:
        ApiError: 400 for more answers than there are letters.
    """
    options: list[tuple[str, object]]
    if isinstance(question, wire.PredicateQuestion):
        options = [("false", None), ("true", None)]
    elif isinstance(question, wire.ChoiceQuestion):
        options = [
            (json.dumps(choice.value, ensure_ascii=False), choice.description)
            for choice in question.choices
        ]
    else:
        options = [(level.label, level.description) for level in question.levels]
    if len(options) > MAX_OPTIONS:
        raise bad_request(f"This model supports at most {MAX_OPTIONS} choices per question")
    return Question("choice", question.instructions, options)


def answer_of(question: wire.AnyQuestion, probabilities: Sequence[float]) -> wire.AnyAnswer:
    """Returns the answer; `probabilities` has one item per label, in the whole vocabulary."""
    label_mass = math.fsum(probabilities)
    shares = [probability / label_mass for probability in probabilities]
    name = question.shown_name
    if isinstance(question, wire.PredicateQuestion):
        return wire.PredicateAnswer(name=name, probability=shares[1])
    confidence = max(probabilities)
    if isinstance(question, wire.ChoiceQuestion):
        choices = []
        for choice, share in zip(question.choices, shares, strict=True):
            choices.append(wire.ChoiceProbability(value=choice.value, probability=share))
        likeliest = max(choices, key=_probability_of)
        return wire.ChoiceAnswer(
            name=name,
            choice=likeliest.value,
            probabilities=choices,
            confidence=confidence,
        )
    levels = []
    for value, share in enumerate(shares):
        label = question.levels[value].label
        levels.append(wire.ScoreProbability(value=value, label=label, probability=share))
    return wire.ScoreAnswer(
        name=name,
        score=sum(level.value * level.probability for level in levels),
        probabilities=levels,
        confidence=confidence,
    )


def _probability_of(choice: wire.ChoiceProbability) -> float:
    return choice.probability
