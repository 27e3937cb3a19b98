"""The action of a rule: the templates of its `then`, filled in for one request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct
from msgspec.structs import replace

from app.engine.core.request import ScriptedCall, ScriptedReply
from app.serving.scripts.rules import Classes, Delays, ScriptError, ScriptFailure, Then, UsageIs
from app.serving.scripts.templates import MOST_CHARACTERS, Template, Values
from config.durations import parse_duration

if TYPE_CHECKING:
    from app.serving.scripts.matching import Request

Accepts = Callable[[object, object], bool]
"""A function of a JSON Schema and a value: True if the schema accepts the value."""
Filled = Callable[[Values], object]
MOST_VECTOR = 1 << 18
MOST_ID = 256
"""Characters of the id of a call."""


class Answer(Struct, frozen=True, kw_only=True):
    reply: ScriptedReply
    usage: UsageIs | None = None
    embedding: tuple[float, ...] | str | None = None
    """A vector, or a text to be embedded."""
    score: float | None = None
    classes: Classes | None = None
    """Probabilities, in order or by name."""


class Action:
    """Compiles the `then` of a rule, without its fault. Raises ScriptError for an invalid template."""

    def __init__(self, then: Then, groups: Iterable[str]) -> None:
        """`groups` names the groups captured by the rule's regexes."""
        self._then = then
        self._groups = frozenset(groups)
        self._text = self._template(then.text, "text")
        self._reasoning = self._template(then.reasoning, "reasoning")
        self._json = None if then.json is UNSET else self._filled(then.json, "json")
        self._calls = [
            (
                call,
                self._filled(call.arguments, f"tool_calls.{number}.arguments"),
                self._template(call.id, f"tool_calls.{number}.id"),
            )
            for number, call in enumerate(then.tool_calls)
        ]
        self._embedding = self._template(then.embedding, "embedding")
        self._score = self._template(then.score, "score")
        self.speaks = bool(then.text is not None or self._json or self._calls or then.reasoning is not None)
        """True if the rule generates text or tool calls."""
        given = {"embedding": then.embedding, "score": then.score, "classes": then.classes}
        self.numbers = next((name for name, value in given.items() if value is not None), "")
        """Key of the numeric result (`app.serving.scripts.matching.WANTS`); empty without one."""
        if not isinstance(then.embedding, str | None) and len(then.embedding) > MOST_VECTOR:
            raise ScriptError(f"then.embedding: at most {MOST_VECTOR} numbers")
        for name, value in given.items():
            numbers = value.values() if isinstance(value, dict) else value
            listed = (numbers,) if isinstance(numbers, float | str | None) else numbers
            if not all(math.isfinite(number) for number in listed if isinstance(number, float)):
                raise ScriptError(f"then.{name}: infinity, and what is not a number, is no JSON")
        delays = then.delays or Delays()
        self._reply = ScriptedReply(
            passes=not self.speaks,
            finish=then.finish_reason,
            first_token_s=_seconds(delays.first_token, "first_token"),
            per_token_s=_seconds(delays.per_token, "per_token"),
            before={number - 1: _seconds(wait, f"before.{number}") for number, wait in delays.before.items()},
        )
        """The reply without its texts and calls."""

    def answer(self, request: Request, values: Values, accepts: Accepts) -> Answer:
        """Builds the answer to a request. ScriptFailure: a template failed, or a tool's schema forbids a
        call.
        """
        text = "" if self._text is None else self._text.text(values)
        if self._json is not None:
            text = json.dumps(self._json(values), ensure_ascii=False)
            if len(text) > MOST_CHARACTERS:
                raise ScriptFailure(f"its json has more than {MOST_CHARACTERS} characters")
        calls: list[ScriptedCall] = []
        for call, fill, own_id in self._calls:
            arguments = fill(values)
            if not call.unchecked:
                check_arguments(call.name, arguments, request.tools[call.name], accepts)
            call_id = "" if own_id is None else own_id.text(values)[:MOST_ID]
            calls.append(ScriptedCall(call.name, json.dumps(arguments, ensure_ascii=False), call_id))
        score: object = self._then.score
        if self._score is not None:
            score = self._score.value(values)
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise ScriptFailure(f"its score is no number, but {str(score)[:60]!r}")
        reasoning = "" if self._reasoning is None else self._reasoning.text(values)
        return Answer(
            reply=replace(self._reply, text=text, reasoning=reasoning, calls=tuple(calls)),
            usage=self._then.usage,
            embedding=self._then.embedding if self._embedding is None else self._embedding.text(values),
            score=float(score) if isinstance(score, int | float) else None,
            classes=self._then.classes,
        )

    def check_calls(self, tools: Mapping[str, object], accepts: Accepts) -> None:
        """Raises ScriptError for a call with constant arguments that its schema in `tools` forbids."""
        for number, call in enumerate(self._then.tool_calls):
            if call.name in tools and not call.unchecked and _is_constant(call.arguments):
                try:
                    check_arguments(call.name, call.arguments, tools[call.name], accepts)
                except ScriptFailure as error:
                    raise ScriptError(f"then.tool_calls.{number}: {error}") from None

    def _template(self, source: object, key: str) -> Template | None:
        if not isinstance(source, str):
            return None
        try:
            return Template(source, self._groups)
        except ScriptError as error:
            raise ScriptError(f"then.{key}: {error}") from None

    def _filled(self, value: object, key: str) -> Filled:
        """Returns a function that fills the templates in a JSON value."""
        if (template := self._template(value, key)) is not None:
            return template.value
        if isinstance(value, dict):
            members = {str(name): self._filled(each, f"{key}.{name}") for name, each in value.items()}
            return lambda values: {name: each(values) for name, each in members.items()}
        if isinstance(value, list | tuple):
            items = [self._filled(each, key) for each in value]
            return lambda values: [each(values) for each in items]
        is_json = isinstance(value, bool | int | None) or isinstance(value, float) and math.isfinite(value)
        if not is_json:
            raise ScriptError(f"then.{key}: {type(value).__name__} is not JSON; put it in quotes")
        return lambda values: value


def check_arguments(name: str, arguments: object, schema: object, accepts: Accepts) -> None:
    """Raises ScriptFailure where a tool's schema forbids these arguments."""
    if not accepts(schema, arguments):
        shown = json.dumps(arguments, ensure_ascii=False)[:120]
        raise ScriptFailure(f"the schema of the tool {name!r} does not allow the arguments {shown}")


def _is_constant(value: object) -> bool:
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, dict):
        return all(map(_is_constant, value.values()))
    return all(map(_is_constant, value)) if isinstance(value, list | tuple) else True


def _seconds(written: str | int, key: str) -> float:
    try:
        seconds = parse_duration(written)
    except ValueError as error:
        raise ScriptError(f"then.delays.{key}: {error}") from None
    if not 0 <= seconds <= 86_400:
        raise ScriptError(f"then.delays.{key}: must be from 0 to 24h")
    return seconds
