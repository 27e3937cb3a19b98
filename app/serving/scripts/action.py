"""The action of a rule: the templates of its `then`, filled in for one request."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, Struct

from app.engine.core.request import ScriptedCall, ScriptedReply
from app.serving.scripts.rules import Call, Classes, Delays, ScriptError, ScriptFailure, Then, UsageIs
from app.serving.scripts.templates import MOST_CHARACTERS, NAMES, Template, Values
from config.durations import parse_duration

if TYPE_CHECKING:
    from app.serving.scripts.matching import Request

Accepts = Callable[[object, object], bool]
"""A function of a JSON Schema and a value: True if the schema accepts the value."""
Filled = Callable[[Values], object]
MOST_VECTOR = 1 << 18
MOST_ID = 256
"""Characters of the id of a call."""
INFINITE = (math.inf, -math.inf)


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
            _CallFilled(
                call,
                self._filled(call.arguments, f"tool_calls.{number}.arguments"),
                self._template(call.id, f"tool_calls.{number}.id"),
            )
            for number, call in enumerate(then.tool_calls)
        ]
        self._embedding = self._template(then.embedding, "embedding")
        self._score = self._template(then.score, "score")
        self._waits = _waits(then.delays) if then.delays is not None else ScriptedReply()
        self.speaks = bool(then.text is not None or self._json or self._calls or then.reasoning is not None)
        """True if the rule generates text or tool calls."""
        given = {"embedding": then.embedding, "score": then.score, "classes": then.classes}
        self.numbers = next((name for name, value in given.items() if value is not None), "")
        """Key of the numeric result (`app.serving.scripts.matching.WANTS`); empty without one."""
        if not isinstance(then.embedding, str | None) and len(then.embedding) > MOST_VECTOR:
            raise ScriptError(f"then.embedding: at most {MOST_VECTOR} numbers")
        for name in ("embedding", "score", "classes"):
            if not all(map(math.isfinite, _numbers_of(given[name]))):
                raise ScriptError(f"then.{name}: infinity, and what is not a number, is no JSON")

    def answer(self, request: Request, values: Values, accepts: Accepts) -> Answer:
        """Builds the answer to a request. ScriptFailure: a template failed, or a tool's schema forbids a
        call.
        """
        then, waits = self._then, self._waits
        text = "" if self._text is None else self._text.text(values)
        if self._json is not None:
            text = json.dumps(self._json(values), ensure_ascii=False)
            if len(text) > MOST_CHARACTERS:
                raise ScriptFailure(f"its json has more than {MOST_CHARACTERS} characters")
        calls = [filled.made(values, request, accepts) for filled in self._calls]
        reply = ScriptedReply(
            passes=not self.speaks,
            text=text,
            reasoning="" if self._reasoning is None else self._reasoning.text(values),
            calls=tuple(calls),
            finish=then.finish_reason,
            first_token_s=waits.first_token_s,
            per_token_s=waits.per_token_s,
            before=waits.before,
        )
        embedding = then.embedding if self._embedding is None else self._embedding.text(values)
        score = then.score if self._score is None else _number(self._score.value(values))
        return Answer(
            reply=reply,
            usage=then.usage,
            embedding=embedding,
            score=None if isinstance(score, str) else score,
            classes=then.classes,
        )

    def check_calls(self, tools: Mapping[str, object], accepts: Accepts) -> None:
        """Raises ScriptError for a call with constant arguments that its schema in `tools` forbids."""
        for number, call in enumerate(self._then.tool_calls):
            if call.unchecked or call.name not in tools or not _is_constant(call.arguments):
                continue
            if flaw := misfit(call.name, call.arguments, tools[call.name], accepts):
                raise ScriptError(f"then.tool_calls.{number}: {flaw}")

    def needed_tools(self) -> list[str]:
        """Returns the names of tools that a request must offer."""
        return [call.name for call in self._then.tool_calls if not call.unchecked]

    def _template(self, source: object, key: str) -> Template | None:
        if not isinstance(source, str):
            return None
        try:
            return Template(source, NAMES, self._groups)
        except ScriptError as error:
            raise ScriptError(f"then.{key}: {error}") from None

    def _filled(self, value: object, key: str) -> Filled:
        """Returns a function that fills the templates in a JSON value."""
        if isinstance(value, str):
            template = self._template(value, key)
            assert template is not None
            return template.value
        if isinstance(value, dict):
            members = {str(name): self._filled(each, f"{key}.{name}") for name, each in value.items()}
            return lambda values: {name: each(values) for name, each in members.items()}
        if isinstance(value, list | tuple):
            items = [self._filled(each, key) for each in value]
            return lambda values: [each(values) for each in items]
        if not isinstance(value, bool | int | float | None) or value != value or value in INFINITE:
            raise ScriptError(f"then.{key}: {type(value).__name__} is not JSON; put it in quotes")
        return lambda values: value


class _CallFilled(NamedTuple):
    """A tool call with its templates compiled."""

    call: Call
    arguments: Filled
    id: Template | None

    def made(self, values: Values, request: Request, accepts: Accepts) -> ScriptedCall:
        """Builds the call. ScriptFailure: the request's schema of the tool forbids the arguments."""
        name, arguments = self.call.name, self.arguments(values)
        if flaw := "" if self.call.unchecked else misfit(name, arguments, request.tools[name], accepts):
            raise ScriptFailure(flaw)
        own_id = "" if self.id is None else self.id.text(values)[:MOST_ID]
        return ScriptedCall(name, json.dumps(arguments, ensure_ascii=False), own_id)


def _numbers_of(value: object) -> Iterable[float]:
    """Numbers written in a key of `then`; empty where a template computes the number."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, tuple) else (value,) if isinstance(value, float) else ()


def _number(value: object) -> float:
    """Returns a template's number. ScriptFailure for any other type."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ScriptFailure(f"its score is no number, but {str(value)[:60]!r}")
    return float(value)


def misfit(name: str, arguments: object, schema: object, accepts: Accepts) -> str:
    """Returns why a tool's schema forbids these arguments; empty when the call is valid."""
    if accepts(schema, arguments):
        return ""
    shown = json.dumps(arguments, ensure_ascii=False)[:120]
    return f"the schema of the tool {name!r} does not allow the arguments {shown}"


def _is_constant(value: object) -> bool:
    if isinstance(value, str):
        return "{{" not in value and "{%" not in value
    if isinstance(value, dict):
        return all(map(_is_constant, value.values()))
    return all(map(_is_constant, value)) if isinstance(value, list | tuple) else True


def _waits(delays: Delays) -> ScriptedReply:
    before = {number - 1: _seconds(wait, f"before.{number}") for number, wait in delays.before.items()}
    return ScriptedReply(
        first_token_s=_seconds(delays.first_token, "first_token"),
        per_token_s=_seconds(delays.per_token, "per_token"),
        before=before,
    )


def _seconds(written: str | int, key: str) -> float:
    try:
        seconds = parse_duration(written)
    except ValueError as error:
        raise ScriptError(f"then.delays.{key}: {error}") from None
    if not 0 <= seconds <= 86_400:
        raise ScriptError(f"then.delays.{key}: must be from 0 to 24h")
    return seconds
