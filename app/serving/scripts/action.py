"""The action of a rule: fills in its `then` for one request."""

import json
import math
from collections.abc import Callable, Iterable, Mapping

from msgspec import UNSET
from msgspec.structs import replace

from app.engine.core.request import ScriptedCall, ScriptedReply
from app.serving.api.reply_rules import ScriptedAnswer
from app.serving.scripts.matching import WORDS, MatchedRequest
from app.serving.scripts.rules import Delays, RuleCall, ScriptError, ScriptFailure, Then
from app.serving.scripts.template import MAX_CHARACTERS, Template, TemplateCompiler, Values, size_of
from config.kinds import parse_duration

MAX_TEMPLATES = 1_000
"""Most templates of a rule: rendering one takes about 30 us."""
MAX_FILLED = 20_000
"""Most values of a JSON value with templates, which is built for each request."""
MOST_VECTOR = 1 << 18
"""Most numbers of an embedding."""
MOST_ID = 256
"""Most characters of the id of a call."""
Accepts = Callable[[object, object], bool]
"""A function of a JSON Schema and a value: True if the schema accepts the value."""
Filler = Callable[[Values], object]


class JsonTemplate:
    """A JSON value of a rule. Each text in it may be a template."""

    def __init__(
        self, value: object, key: str, compile_text: Callable[[str, str], Template]
    ) -> None:
        """`key` is the place below `then`. `compile_text` compiles a text at a key.

        Raises ScriptError for a value that is not JSON, and for an invalid template.
        """
        self._key = key
        self._compile_text = compile_text
        self._values = 0
        self._fill, is_constant = self._filler(value, key)
        self.constant_text: str | None = None
        """The JSON of a value without templates."""
        if is_constant:
            self._constant = self._fill({})
            self.constant_text = json.dumps(self._constant, ensure_ascii=False)
        elif size_of(value) > MAX_CHARACTERS:
            raise ScriptError(
                f"then.{key}: has templates, and more than {MAX_CHARACTERS} characters"
            )
        elif self._values > MAX_FILLED:
            raise ScriptError(f"then.{key}: has templates, and more than {MAX_FILLED} values")

    def fill(self, values: Values) -> tuple[object, str]:
        """Returns the value and its JSON.

        ScriptFailure when a template fails, or makes too long a text.
        """
        if self.constant_text is not None:
            return self._constant, self.constant_text
        value = self._fill(values)
        if size_of(value) > MAX_CHARACTERS:
            raise ScriptFailure(f"its {self._key} has more than {MAX_CHARACTERS} characters")
        return value, json.dumps(value, ensure_ascii=False)

    def _filler(self, value: object, key: str) -> tuple[Filler, bool]:
        """Returns a function that fills `value`, and whether `value` has no template."""
        self._values += 1
        if isinstance(value, str):
            template = self._compile_text(value, key)
            return template.value, template.is_constant
        if isinstance(value, dict):
            members = {
                str(name): self._filler(each, f"{key}.{name}") for name, each in value.items()
            }
            fillers = {name: fill for name, (fill, _) in members.items()}
            is_constant = all(constant for _, constant in members.values())
            return lambda values: {
                name: fill(values) for name, fill in fillers.items()
            }, is_constant
        if isinstance(value, list | tuple):
            items = [self._filler(each, key) for each in value]
            item_fillers = [fill for fill, _ in items]
            is_constant = all(constant for _, constant in items)
            return lambda values: [fill(values) for fill in item_fillers], is_constant
        is_json = isinstance(value, bool | int | None) or (
            isinstance(value, float) and math.isfinite(value)
        )
        if not is_json:
            raise ScriptError(f"then.{key}: {type(value).__name__} is not JSON; put it in quotes")
        return lambda values: value, True


class Action:
    """Compiles the `then` of a rule, without its fault.

    Raises ScriptError for an invalid template.
    """

    def __init__(
        self, then: Then, groups: Iterable[str], compiler: TemplateCompiler | None = None
    ) -> None:
        """`groups` names the groups captured by the rule's regexes."""
        self._then = then
        self._groups = frozenset(groups)
        self._compiler = compiler or TemplateCompiler()
        self._templates = 0
        self._text = self._template(then.text, "text")
        self._reasoning = self._template(then.reasoning, "reasoning")
        self._json: JsonTemplate | None = None
        if then.json is not UNSET:
            self._json = JsonTemplate(then.json, "json", self._compile)
            if len(self._json.constant_text or "") > MAX_CHARACTERS:
                raise ScriptError(f"then.json: has more than {MAX_CHARACTERS} characters")
        self._calls: list[tuple[RuleCall, JsonTemplate, Template | None]] = []
        for number, call in enumerate(then.tool_calls):
            key = f"tool_calls.{number}"
            arguments = JsonTemplate(call.arguments, f"{key}.arguments", self._compile)
            self._calls.append((call, arguments, self._template(call.id, f"{key}.id")))
        self._embedding = self._template(then.embedding, "embedding")
        self._score = self._template(then.score, "score")
        speaks = bool(
            then.text is not None or self._json or self._calls or then.reasoning is not None
        )
        given = {"embedding": then.embedding, "score": then.score, "classes": then.classes}
        numbers = next((name for name, value in given.items() if value is not None), "")
        self.result = numbers or WORDS * speaks
        """Kind of result, of `app.serving.scripts.matching.WANTS`; empty if the rule only passes or
        fails.
        """
        if not isinstance(then.embedding, str | None) and len(then.embedding) > MOST_VECTOR:
            raise ScriptError(f"then.embedding: at most {MOST_VECTOR} numbers")
        for name, value in given.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ScriptError(
                    f"then.{name}: infinity, and what is not a number, is no JSON"
                ) from None
        delays = then.delays or Delays()
        self._reply = ScriptedReply(
            passes=not speaks,
            finish=then.finish_reason,
            first_token_s=_seconds(delays.first_token, "first_token"),
            per_token_s=_seconds(delays.per_token, "per_token"),
            token_delays={
                number - 1: _seconds(wait, f"before.{number}")
                for number, wait in delays.before.items()
            },
        )
        """The reply without its texts and calls."""

    def answer(self, request: MatchedRequest, values: Values, accepts: Accepts) -> ScriptedAnswer:
        """Builds the answer.

        ScriptFailure: a template failed, or a tool's schema forbids a call.
        """
        text = "" if self._text is None else self._text.text(values)
        if self._json is not None:
            _, text = self._json.fill(values)
            if len(text) > MAX_CHARACTERS:
                raise ScriptFailure(f"its json has more than {MAX_CHARACTERS} characters")
        calls: list[ScriptedCall] = []
        for call, arguments_template, id_template in self._calls:
            arguments, arguments_text = arguments_template.fill(values)
            if not call.unchecked:
                check_arguments(call.name, arguments, request.tools[call.name], accepts)
            call_id = "" if id_template is None else id_template.text(values)[:MOST_ID]
            calls.append(ScriptedCall(call.name, arguments_text, call_id))
        score: object = self._then.score
        if self._score is not None:
            score = self._score.value(values)
            if (
                isinstance(score, bool)
                or not isinstance(score, int | float)
                or not math.isfinite(score)
            ):
                raise ScriptFailure(f"its score is no number, but {str(score)[:60]!r}")
        reasoning = "" if self._reasoning is None else self._reasoning.text(values)
        return ScriptedAnswer(
            reply=replace(self._reply, text=text, reasoning=reasoning, calls=tuple(calls)),
            usage=self._then.usage,
            embedding=self._then.embedding
            if self._embedding is None
            else self._embedding.text(values),
            score=float(score) if isinstance(score, int | float) else None,
            classes=self._then.classes,
        )

    def check_calls(self, tools: Mapping[str, object], accepts: Accepts, place: str) -> None:
        """Raises ScriptError, with the rule's `place`, for a call that no request could allow."""
        for number, (call, arguments_template, _) in enumerate(self._calls):
            if call.name in tools and not call.unchecked:
                try:
                    arguments, _ = arguments_template.fill({})
                except ScriptFailure:  # its templates need a request
                    continue
                try:
                    check_arguments(call.name, arguments, tools[call.name], accepts)
                except ScriptFailure as error:
                    raise ScriptError(f"{place}: then.tool_calls.{number}: {error}") from None

    def _template(self, source: object, key: str) -> Template | None:
        return self._compile(source, key) if isinstance(source, str) else None

    def _compile(self, source: str, key: str) -> Template:
        try:
            template = Template(source, self._groups, self._compiler)
        except ScriptError as error:
            raise ScriptError(f"then.{key}: {error}") from None
        if not template.is_constant:
            self._templates += 1
            if self._templates > MAX_TEMPLATES:
                raise ScriptError(f"then.{key}: the rule has more than {MAX_TEMPLATES} templates")
        return template


def check_arguments(name: str, arguments: object, schema: object, accepts: Accepts) -> None:
    """Raises ScriptFailure where a tool's schema forbids these arguments."""
    if not accepts(schema, arguments):
        shown = json.dumps(arguments, ensure_ascii=False)[:120]
        raise ScriptFailure(f"the schema of the tool {name!r} does not allow the arguments {shown}")


def _seconds(written: str | int, key: str) -> float:
    try:
        seconds = parse_duration(written)
    except ValueError as error:
        raise ScriptError(f"then.delays.{key}: {error}") from None
    if not 0 <= seconds <= 86_400:
        raise ScriptError(f"then.delays.{key}: must be from 0 to 24h")
    return seconds
