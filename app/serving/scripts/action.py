"""The action of a rule: the templates of its `then`, filled in for one request.

Templates are `It is {{ message | length }} characters, {{ match.name | title }}.` The language is Jinja's
without unbounded work: no loops, macros or imports, no methods, no repetition of texts. Templates only take
values, compare and compute them and apply filters. Rendering is linear in the length of the template and of
its values.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from random import Random

from jinja2 import TemplateError, meta, nodes
from jinja2.runtime import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import UNSET, Struct
from msgspec.structs import replace

from app.engine.core.request import ScriptedCall, ScriptedReply
from app.serving.protocol.common import UsageOverrides
from app.serving.scripts.matching import WORDS, MatchedRequest
from app.serving.scripts.rules import Classes, Delays, ScriptError, ScriptFailure, Then
from config.kinds import parse_duration

MOST_CHARACTERS = 1 << 18
"""Longest text that a template, or a filter in it, makes, in characters."""
MOST_BITS, MOST_DIGITS, MOST_HEX = 1024, 20, 64
NAMES = frozenset(
    ("match", "message", "user", "tool_result", "model", "api", "turn", "count", "now", "unix", "header")
)
"""Names that a template can use (docs/scripts.md)."""
FUNCTIONS = frozenset(("random", "choose", "hex", "header"))
"""Names that a template can call."""
FILTERS = (
    *("upper", "lower", "capitalize", "title", "trim", "int", "float", "length", "first", "last"),
    *("default", "string", "abs"),
)
TESTS = ("defined", "none", "string", "number", "odd", "even")
_WIDE = re.compile(r"%[^A-Za-z%]")
Values = Mapping[str, object]


class Template:
    """A compiled text of a script. ScriptError for an invalid template."""

    def __init__(self, source: str, groups: frozenset[str] | None = None) -> None:
        """`groups` are the groups of `match`; None allows any group."""
        self.source = source
        self._template = self._expression = None
        if len(source) > MOST_CHARACTERS:
            raise ScriptError(f"a text of {len(source)} characters is too long")
        if any("\ud800" <= character <= "\udfff" for character in source):
            raise ScriptError(f"the text {source[:60]!a} has half of a character (a surrogate)")
        if not any(mark in source for mark in ("{{", "{%", "{#")):
            return
        environment = _Environment()
        try:
            tree = environment.parse(source)
            _check(tree, groups)
            self._template = environment.from_string(source)
            output = tree.body[0] if len(tree.body) == 1 else None
            is_alone = isinstance(output, nodes.Output) and len(output.nodes) == 1
            if is_alone and source.startswith("{{") and source.endswith("}}"):
                self._expression = environment.compile_expression(source[2:-2].strip("-+ \n"), False)
        except (TemplateError, ValueError, OverflowError) as error:  # such as a number of 5,000 digits
            raise ScriptError(f"template {source[:60]!r}: {getattr(error, 'message', '') or error}") from None
        except (RecursionError, MemoryError):
            raise ScriptError(f"template {source[:60]!r}: is nested too deeply") from None

    def text(self, values: Values) -> str:
        """Renders the text. ScriptFailure when rendering fails."""
        template = self._template
        if template is None:
            return self.source
        return str(self._made(lambda: "".join(_limited(template.generate(**values)))))

    def value(self, values: Values) -> object:
        """Returns the value of a template of one expression, and the text of other templates."""
        expression = self._expression
        return self.text(values) if expression is None else self._made(lambda: _plain(expression(**values)))

    def _made(self, make: Callable[[], object]) -> object:
        try:
            return make()
        except Exception as error:  # a template is a program, and may fail in any way
            raise ScriptFailure(f"its template {self.source[:60]!r} failed: {error}") from None


def random_functions(rng: Random) -> dict[str, object]:
    """Functions of templates that draw from one stream."""

    def draw_hex(digits: int = 8) -> str:
        digits = max(1, min(digits, MOST_HEX))
        return f"{rng.getrandbits(4 * digits):0{digits}x}"

    return {
        "random": lambda least=0, most=100: rng.randint(least, most),
        "choose": lambda *items: rng.choice(items),
        "hex": draw_hex,
    }


class _Environment(ImmutableSandboxedEnvironment):
    """Sandbox with `*` and `%` only for numbers of limited size: a text times a million needs a gigabyte."""

    intercepted_binops = frozenset("*%")

    def __init__(self) -> None:
        super().__init__(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
        ours = {
            "replace": _replace,
            "round": lambda number, digits=0: round(number, max(-MOST_DIGITS, min(digits, MOST_DIGITS))),
            "json": _json,
            "date": _date,
            "truncate": lambda text, most=100: str(text)[:most],
        }
        self.filters = {name: self.filters[name] for name in FILTERS} | ours
        self.tests = {name: self.tests[name] for name in TESTS}
        self.globals = {}

    def call_binop(self, context: object, operator: str, left: object, right: object) -> object:
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TemplateError(f"{operator} is for numbers")
        if isinstance(left, int) and isinstance(right, int) and (left | right).bit_length() > MOST_BITS:
            raise TemplateError(f"{operator} is for numbers of up to {MOST_BITS} bits")
        return left * right if operator == "*" else left % right


def _check(tree: nodes.Template, groups: frozenset[str] | None) -> None:
    """Raises TemplateError for a statement, call, group or name that scripts do not allow."""
    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Stmt | nodes.Pow) and not isinstance(node, nodes.Output | nodes.If):
            raise TemplateError(f"{type(node).__name__} (line {node.lineno}) is not possible in a script")
        if isinstance(node, nodes.Call) and getattr(node.node, "name", "") not in FUNCTIONS:
            raise TemplateError(f"only {', '.join(sorted(FUNCTIONS))} can be called (line {node.lineno})")
        group = getattr(node, "attr", None) or getattr(getattr(node, "arg", None), "value", None)
        is_match = (
            isinstance(node, nodes.Getattr | nodes.Getitem) and getattr(node.node, "name", "") == "match"
        )
        if is_match and groups is not None and group is not None and str(group) not in groups:
            there = f"there are {', '.join(sorted(groups))}" if groups else "the rule has no regex"
            raise TemplateError(f"there is no group {str(group)!r} in match; {there}")
    unknown = meta.find_undeclared_variables(tree) - NAMES - FUNCTIONS
    if unknown:
        known = ", ".join(sorted(NAMES | FUNCTIONS))
        raise TemplateError(f"unknown name {min(unknown)!r}; there are {known}")


def _limited(pieces: Iterator[str]) -> Iterator[str]:
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > MOST_CHARACTERS:
            raise TemplateError(f"the text has more than {MOST_CHARACTERS} characters")
        yield piece


def _plain(value: object) -> object:
    """Converts a value to a JSON type; StrictUndefined raises its error."""
    if isinstance(value, StrictUndefined):
        str(value)  # raises its error
    if isinstance(value, str):
        return "".join(_limited(iter((value,))))
    if isinstance(value, float) and not math.isfinite(value):
        raise TemplateError(f"{value} is no number of JSON")
    return value if isinstance(value, int | float | bool | list | dict) or value is None else str(value)


def _replace(text: object, old: str, new: str) -> str:
    text = str(text)
    if len(text) + text.count(old) * len(new) > MOST_CHARACTERS:
        raise TemplateError(f"replace makes more than {MOST_CHARACTERS} characters")
    return text.replace(old, new)


def _json(value: object) -> str:
    """Encodes JSON of limited length: repeated escaping multiplies the length of a text."""
    return "".join(_limited(iter((json.dumps(value, ensure_ascii=False, allow_nan=False),))))


def _date(unix_s: float, form: str = "%Y-%m-%d") -> str:
    if _WIDE.search(form):  # such as %999999999Y, which pads to that width
        raise TemplateError(f"date knows no {form[:40]!r}")
    return datetime.fromtimestamp(unix_s, UTC).strftime(form)


Accepts = Callable[[object, object], bool]
"""A function of a JSON Schema and a value: True if the schema accepts the value."""
Filled = Callable[[Values], object]
MOST_VECTOR, MOST_ID = 1 << 18, 256
"""Most numbers of an embedding, and characters of the id of a call."""


class ScriptedAnswer(Struct, frozen=True, kw_only=True):
    reply: ScriptedReply
    usage: UsageOverrides | None = None
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
            (call, self._filled(call.arguments, f"{key}.arguments"), self._template(call.id, f"{key}.id"))
            for key, call in ((f"tool_calls.{number}", call) for number, call in enumerate(then.tool_calls))
        ]
        self._embedding = self._template(then.embedding, "embedding")
        self._score = self._template(then.score, "score")
        speaks = bool(then.text is not None or self._json or self._calls or then.reasoning is not None)
        given = {"embedding": then.embedding, "score": then.score, "classes": then.classes}
        numbers = next((name for name, value in given.items() if value is not None), "")
        self.result = numbers or WORDS * speaks
        """Kind of result, of `app.serving.scripts.matching.WANTS`; empty if the rule only passes or fails."""
        if not isinstance(then.embedding, str | None) and len(then.embedding) > MOST_VECTOR:
            raise ScriptError(f"then.embedding: at most {MOST_VECTOR} numbers")
        for name, value in given.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                raise ScriptError(f"then.{name}: infinity, and what is not a number, is no JSON") from None
        delays = then.delays or Delays()
        self._reply = ScriptedReply(
            passes=not speaks,
            finish=then.finish_reason,
            first_token_s=_seconds(delays.first_token, "first_token"),
            per_token_s=_seconds(delays.per_token, "per_token"),
            before={number - 1: _seconds(wait, f"before.{number}") for number, wait in delays.before.items()},
        )
        """The reply without its texts and calls."""

    def answer(self, request: MatchedRequest, values: Values, accepts: Accepts) -> ScriptedAnswer:
        """Builds the answer. ScriptFailure: a template failed, or a tool's schema forbids a call."""
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
        return ScriptedAnswer(
            reply=replace(self._reply, text=text, reasoning=reasoning, calls=tuple(calls)),
            usage=self._then.usage,
            embedding=self._then.embedding if self._embedding is None else self._embedding.text(values),
            score=float(score) if isinstance(score, int | float) else None,
            classes=self._then.classes,
        )

    def check_calls(self, tools: Mapping[str, object], accepts: Accepts, place: str) -> None:
        """Raises ScriptError, with the rule's `place`, for a call that no request could allow."""
        for number, (call, fill, _) in enumerate(self._calls):
            if call.name in tools and not call.unchecked:
                try:
                    arguments = fill({})
                except ScriptFailure:  # its templates need a request
                    continue
                try:
                    check_arguments(call.name, arguments, tools[call.name], accepts)
                except ScriptFailure as error:
                    raise ScriptError(f"{place}: then.tool_calls.{number}: {error}") from None

    def _template(self, source: object, key: str) -> Template | None:
        if not isinstance(source, str):
            return None
        try:
            return Template(source, self._groups)
        except ScriptError as error:
            raise ScriptError(f"then.{key}: {error}") from None

    def _filled(self, value: object, key: str) -> Filled:
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


def _seconds(written: str | int, key: str) -> float:
    try:
        seconds = parse_duration(written)
    except ValueError as error:
        raise ScriptError(f"then.delays.{key}: {error}") from None
    if not 0 <= seconds <= 86_400:
        raise ScriptError(f"then.delays.{key}: must be from 0 to 24h")
    return seconds
