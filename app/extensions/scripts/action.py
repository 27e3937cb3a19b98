"""The action of a rule: fills in its `then` for one request."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from app.core.api.reply_rules import ScriptedAnswer
from app.core.engine.request import ScriptedCall, ScriptedReply
from app.core.protocol.common import Blocks, UsageOverrides
from app.extensions.scripts.block_texts import check_blocks, streamed_text
from app.extensions.scripts.json_template import ArgumentsText, JsonTemplate
from app.extensions.scripts.matched_request import GENERATED, MatchedRequest
from app.extensions.scripts.rules import (
    NUMBER_KEYS,
    Delays,
    RuleCall,
    RuleFailureError,
    ScriptError,
    Then,
)
from app.extensions.scripts.template import Template, TemplateCompiler
from app.extensions.scripts.template_limits import MAX_CHARACTERS, Values
from config.durations import parse_duration

MAX_TEMPLATES = 1_000
"""Most templates of a rule: rendering one takes about 30 us."""
MAX_EMBEDDING_NUMBERS = 1 << 18
MAX_CALL_ID_CHARACTERS = 256
MAX_DELAY_S = 86_400
Accepts = Callable[[object, object], bool]
"""A function of a JSON Schema and a value: True if the schema accepts the value."""


@dataclass(frozen=True, slots=True)
class CallTemplate:
    """A tool call of a rule with its compiled templates."""

    call: RuleCall
    arguments: ArgumentsText | JsonTemplate
    id: Template | None


class Action:
    """The compiled `then` of a rule, without its fault."""

    def __init__(
        self, outcome: Then, groups: Iterable[str], compiler: TemplateCompiler | None = None
    ) -> None:
        """`groups` names the groups captured by the rule's regexes.

        Raises:
            ScriptError: A template or a value is invalid.
        """
        self._outcome = outcome
        self._groups = frozenset(groups)
        self._compiler = compiler or TemplateCompiler()
        self._template_count = 0
        self._text = self._compile_optional(outcome.text, "text")
        self._reasoning = self._compile_optional(outcome.reasoning, "reasoning")
        self._json: JsonTemplate | None = None
        if outcome.json is not UNSET:
            self._json = JsonTemplate(outcome.json, "json", self._compile)
            if len(self._json.constant_text or "") > MAX_CHARACTERS:
                raise ScriptError(f"then.json: must not exceed {MAX_CHARACTERS} characters")
        self._calls: list[CallTemplate] = []
        for number, call in enumerate(outcome.tool_calls):
            key = f"tool_calls.{number}"
            arguments = self._compile_arguments(call, f"{key}.arguments")
            call_id = self._compile_optional(call.id, f"{key}.id")
            self._calls.append(CallTemplate(call, arguments, call_id))
        self._blocks: Blocks | None = None
        if outcome.blocks is not None:
            check_blocks(outcome.blocks)
            self._blocks = [(block, streamed_text(block)) for block in outcome.blocks]
        self._embedding = self._compile_optional(outcome.embedding, "embedding")
        self._score = self._compile_optional(outcome.score, "score")
        self._usage = outcome.usage
        if outcome.input_tokens is not None:
            self._usage = UsageOverrides(prompt_tokens=outcome.input_tokens)
        self.result_kind = self._result_kind()
        """Kind of result (see `MatchedRequest`); empty if the rule only passes or fails."""
        _check_numbers(outcome)
        self._reply = _reply_without_content(outcome, passes=self.result_kind != GENERATED)
        self.constant_answer: ScriptedAnswer | None = None
        """The answer to every request, once it is built; None if calls or templates differ."""

    @property
    def is_constant(self) -> bool:
        """True if the action has no template of a request's values."""
        return not self._template_count

    def _result_kind(self) -> str:
        for key in NUMBER_KEYS:
            if getattr(self._outcome, key) is not None:
                return key
        generates = self._text or self._json or self._calls or self._reasoning
        if generates or self._blocks:
            return GENERATED
        return ""

    def answer(self, request: MatchedRequest, values: Values, accepts: Accepts) -> ScriptedAnswer:
        """Returns the answer; one without templates and calls is built once.

        Raises:
            RuleFailureError: A template failed, or a tool's schema forbids a call.
        """
        if self.constant_answer is not None:
            return self.constant_answer
        answer = self._build(request, values, accepts)
        if self.is_constant and not self._calls:
            self.constant_answer = answer
        return answer

    def _build(self, request: MatchedRequest, values: Values, accepts: Accepts) -> ScriptedAnswer:
        text = _render(self._text, values)
        if self._json is not None:
            _, text = self._json.fill(values)
            if len(text) > MAX_CHARACTERS:
                raise RuleFailureError(f"json must not exceed {MAX_CHARACTERS} characters")
        if self._blocks is not None:
            text = "".join(streamed for _, streamed in self._blocks)
        calls = [self._call(template, request, values, accepts) for template in self._calls]
        score = self._score_value(values)
        reasoning = _render(self._reasoning, values)
        embedding = self._outcome.embedding
        if self._embedding is not None:
            embedding = self._embedding.text(values)
        return ScriptedAnswer(
            reply=replace(self._reply, text=text, reasoning=reasoning, calls=tuple(calls)),
            usage=self._usage,
            embedding=embedding,
            score=score,
            classes=self._outcome.classes,
            blocks=self._blocks,
        )

    def _call(
        self, template: CallTemplate, request: MatchedRequest, values: Values, accepts: Accepts
    ) -> ScriptedCall:
        name = template.call.name
        arguments, arguments_text = template.arguments.fill(values)
        if not template.call.unchecked:
            check_arguments(name, arguments, request.tools[name], accepts)
        call_id = _render(template.id, values)[:MAX_CALL_ID_CHARACTERS]
        return ScriptedCall(name, arguments_text, call_id)

    def _score_value(self, values: Values) -> float | None:
        score: object = self._outcome.score
        if self._score is not None:
            score = self._score.value(values)
            if isinstance(score, bool) or not is_finite_number(score):
                raise RuleFailureError(f"score must be a number, got {str(score)[:60]!r}")
        return float(score) if isinstance(score, int | float) else None

    def check_calls(self, tools: Mapping[str, object], accepts: Accepts, location: str) -> None:
        """Raises `ScriptError`, with the rule's location, for a call that no request allows."""
        for number, template in enumerate(self._calls):
            name = template.call.name
            if name in tools and not template.call.unchecked:
                try:
                    arguments, _ = template.arguments.fill({})
                except RuleFailureError:  # its templates need a request
                    continue
                try:
                    check_arguments(name, arguments, tools[name], accepts)
                except RuleFailureError as error:
                    raise ScriptError(f"{location}: then.tool_calls.{number}: {error}") from None

    def _compile_arguments(self, call: RuleCall, key: str) -> ArgumentsText | JsonTemplate:
        if isinstance(call.arguments, str):
            is_checked = not call.unchecked
            return ArgumentsText(call.arguments, key, self._compile, is_checked=is_checked)
        return JsonTemplate(call.arguments, key, self._compile)

    def _compile_optional(self, source: object, key: str) -> Template | None:
        return self._compile(source, key) if isinstance(source, str) else None

    def _compile(self, source: str, key: str) -> Template:
        try:
            template = Template(source, self._groups, self._compiler)
        except ScriptError as error:
            raise ScriptError(f"then.{key}: {error}") from None
        if not template.is_constant:
            self._template_count += 1
            if self._template_count > MAX_TEMPLATES:
                raise ScriptError(
                    f"then.{key}: a rule must not have more than {MAX_TEMPLATES} templates"
                )
        return template


def check_arguments(name: str, arguments: object, schema: object, accepts: Accepts) -> None:
    """Raises `RuleFailureError` if a tool's schema forbids the arguments of a call."""
    if not accepts(schema, arguments):
        excerpt = json.dumps(arguments, ensure_ascii=False)[:120]
        raise RuleFailureError(
            f"the schema of the tool {name!r} does not allow the arguments {excerpt}"
        )


def is_finite_number(value: object) -> bool:
    """Returns true for a number that JSON can express."""
    return isinstance(value, int | float) and math.isfinite(value)


def _check_numbers(outcome: Then) -> None:
    embedding = outcome.embedding
    if isinstance(embedding, tuple) and len(embedding) > MAX_EMBEDDING_NUMBERS:
        raise ScriptError(f"then.embedding: must contain at most {MAX_EMBEDDING_NUMBERS} numbers")
    for key in NUMBER_KEYS:
        try:
            json.dumps(getattr(outcome, key), allow_nan=False)
        except ValueError:
            raise ScriptError(f"then.{key}: numbers must be finite") from None


def _reply_without_content(outcome: Then, passes: bool) -> ScriptedReply:
    delays = outcome.delays or Delays()
    return ScriptedReply(
        passes=passes,
        finish=outcome.finish_reason,
        first_token_s=_seconds(delays.first_token, "first_token"),
        per_token_s=_seconds(delays.per_token, "per_token"),
        token_delays={
            number - 1: _seconds(delay, f"before.{number}")
            for number, delay in delays.before.items()
        },
    )


def _render(template: Template | None, values: Values) -> str:
    return "" if template is None else template.text(values)


def _seconds(duration: str | int, key: str) -> float:
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise ScriptError(f"then.delays.{key}: {error}") from None
    if not 0 <= seconds <= MAX_DELAY_S:
        raise ScriptError(f"then.delays.{key}: must be between 0 and 24h")
    return seconds
