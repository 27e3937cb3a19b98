"""A compiled schema, and random values that satisfy it.

`CompiledSchema` draws a value and validates it; `Draw` follows a random branch of each choice.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from math import inf
from random import Random
from typing import NamedTuple

import msgspec

from app.core.base.clock.pause import call_long, paced
from app.core.engine.constraints import SchemaVerdict
from app.extensions.forms.schema.array_draw import ArrayDraw
from app.extensions.forms.schema.backends.loosened import loosened
from app.extensions.forms.schema.backends.verdicts import verdict_on
from app.extensions.forms.schema.bounds import (
    MEMBERS_PER_STEP,
    SchemaError,
    Size,
    UnsatisfiableError,
    WorkBudget,
    WorkExhaustedError,
    shuffled,
)
from app.extensions.forms.schema.document import Document, Flattened
from app.extensions.forms.schema.keywords import JSON, Choice, Keywords, Number, Option, Schema
from app.extensions.forms.schema.merged_schema import SUGGESTING_KEYWORDS, MergedSchema
from app.extensions.forms.schema.number_draw import Range, draw_number
from app.extensions.forms.schema.object_draw import ObjectDraw
from app.extensions.forms.schema.plans import MAX_VALUES, ObjectPlan, object_plan
from app.extensions.forms.schema.reader import Reader
from app.extensions.forms.schema.text_draw import TextDraw, draw_any_text
from app.extensions.forms.schema.validation import accepts
from config.settings import ToolSettings
from config.untrusted import decode_untrusted, python_json

MAX_STEPS = 12_000
"""Steps of one draw with all its attempts: about 100 ms of work."""
SAMPLE_ATTEMPTS = 6
"""Values drawn and validated before giving up, the first half with ``format`` as a rule."""
WORK_PER_CHARACTER = 8
"""Work of reading a character, in bytes as `call_long` counts them."""
BYTES_PER_ENTRY = 800
"""Maximum memory of a cached schema beside its objects and its text, measured."""
BYTES_PER_OBJECT = 1600
"""Maximum memory of each object in a cached schema that values were drawn from, measured."""
BYTES_PER_CHARACTER = 14
"""Maximum memory of each character of a cached schema's JSON, measured."""
SMALL_DEPTH = 5
"""Levels of nesting below which values are small: no optional fields, shallow branches."""
MAX_DEPTH = 64
MAX_ATTEMPTS = 16
"""Draws for the whole value; each level of nesting has half as many."""
MIN_ATTEMPTS = 3
"""Draws for one place of the value, at least."""
COMBINING_KEYWORDS = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"))
"""Keywords that apply further schemas to the same value."""
LISTING_KEYWORDS = frozenset(("type", "enum"))
"""Keywords beside which every option of an ``enum`` is valid that has a possible type."""
ENUM_KEYWORDS = frozenset(("enum", "default", "examples"))
"""Keywords beside which every option of an ``enum`` is valid."""
BRIEF_NUMBER_RANGE = 9
"""Maximum distance of a brief number from the start of the usual range."""


class PlanChoice(NamedTuple):
    """The plan of a schema under the settings `usual`; None where values are searched."""

    usual: ToolSettings
    plan: ObjectPlan | None


class CompiledSchema:
    """The schema in the JSON `text`, ready to draw from.

    `size_bytes` is its maximum memory. `lenient` leaves out invalid parts.

    Raises:
        SchemaError: The schema is invalid.
    """

    def __init__(self, text: bytes, lenient: bool) -> None:
        self._text = text
        self._lenient = lenient
        self._choice: PlanChoice | None = None
        """For the last settings, in one object: another thread may have other settings."""
        try:
            self._document = Reader(text, lenient).read_document()
        except RecursionError:
            raise SchemaError("the schema is nested too deeply") from None
        self.size_bytes = (
            BYTES_PER_ENTRY
            + BYTES_PER_OBJECT * text.count(b"{")
            + BYTES_PER_CHARACTER * len(text)
            + self._document.pattern_bytes
        )

    def sample(self, rng: Random, usual: ToolSettings, size: Size = Size.USUAL) -> JSON:
        """Returns a JSON value that satisfies the schema, of `size` or, where that fails, smaller.

        The value is valid with ``format`` as an annotation, as in the specification, and also with
        ``format`` as a rule if such a value is found. `usual` has the ranges of values where the
        schema leaves the choice. Takes at most about 100 ms, and pauses for other greenlets. A
        lenient schema without a valid value has values as vLLM's backend reads it.

        Raises:
            SchemaError: No value was found.
        """
        choice = self._choice
        if choice is None or choice.usual is not usual:
            choice = self._choose(usual)
        if choice.plan is not None and size >= Size.FRUGAL:
            return choice.plan.draw(rng, usual, size)
        try:
            return self._search(rng, usual, size)
        except SchemaError:
            if not self._lenient:
                raise
        return self._loosened._search(rng, usual, size)

    def max_values(self, usual: ToolSettings) -> float:
        """Returns how many values one draw has at most; infinity where no plan limits them."""
        plan = self._choose(usual).plan
        return inf if plan is None else plan.max_values(usual)

    def _choose(self, usual: ToolSettings) -> PlanChoice:
        choice = PlanChoice(usual, self._plan_for(usual))
        self._choice = choice
        return choice

    def _search(self, rng: Random, usual: ToolSettings, size: Size) -> JSON:
        """Draws values until one is valid, see `sample`."""
        budget = WorkBudget(MAX_STEPS)
        fallbacks: list[JSON] = []
        """Values that are valid only with ``format`` as an annotation."""
        try:
            for attempt in range(SAMPLE_ATTEMPTS):
                formats = attempt < SAMPLE_ATTEMPTS // 2
                draw_size = size
                if attempt % 2:
                    draw_size = min(size, Size.FRUGAL)
                draw = Draw(self._document, usual, rng, budget, formats=formats, size=draw_size)
                with suppress(UnsatisfiableError):
                    value = draw.draw_value([self._document.root])
                    if formats and self._document.is_plain:
                        return value
                    if self._is_valid(value, budget, formats=False):
                        if formats or self._is_valid(value, budget, formats=True):
                            return value
                        fallbacks.append(value)
        except RecursionError:
            raise WorkExhaustedError("the schema is nested too deeply to be satisfied") from None
        except WorkExhaustedError:
            if not fallbacks:
                raise
        if not fallbacks:
            raise UnsatisfiableError("could not find a value that satisfies the schema")
        return fallbacks[0]

    def _plan_for(self, usual: ToolSettings) -> ObjectPlan | None:
        """Returns the plan of the values; None where they may be too many or are not simple."""
        if not self._document.is_plain:
            return None
        plan = object_plan(self._document.root)
        if plan is None or plan.max_values(usual) > MAX_VALUES:
            return None
        return plan

    @cached_property
    def verdict(self) -> SchemaVerdict:
        """The answer of vLLM to the schema."""
        return call_long(WORK_PER_CHARACTER * len(self._text), _verdict_on, self._text)

    @cached_property
    def _loosened(self) -> "CompiledSchema":
        """The schema as vLLM's backend reads it."""
        return call_long(WORK_PER_CHARACTER * len(self._text), _loosened_schema, self._text)

    def accepts(self, value: JSON) -> bool:
        """Returns True for a valid `value`; ``format`` is an annotation. Raises SchemaError."""
        return self._is_valid(value, WorkBudget(MAX_STEPS), formats=False)

    def _is_valid(self, value: JSON, budget: WorkBudget, formats: bool) -> bool:
        return accepts(self._document, self._document.root, value, budget, formats=formats)


def _verdict_on(text: bytes) -> SchemaVerdict:
    return verdict_on(decode_untrusted(text, decoder=python_json))


def _loosened_schema(text: bytes) -> CompiledSchema:
    schema = loosened(decode_untrusted(text, decoder=python_json))
    return CompiledSchema(msgspec.json.encode(schema), lenient=True)


class Draw:
    """One draw from `document`; `formats` makes ``format`` a rule rather than an annotation.

    `usual` has the ranges of values where the schema leaves the choice.
    """

    def __init__(
        self,
        document: Document,
        usual: ToolSettings,
        rng: Random,
        budget: WorkBudget,
        *,
        formats: bool,
        size: Size,
    ) -> None:
        self.rng = rng
        self.usual = usual
        self.budget = budget
        self._document = document
        self._formats = formats
        self._size = size
        self._is_brief = size <= Size.BRIEF
        self._value_count = 0

    def draw_value(self, schemas: Sequence[Schema], depth: int = 0, name: str = "") -> JSON:
        """Returns a value that all of `schemas` accept.

        It is `depth` levels down, in the property `name`.

        Raises:
            UnsatisfiableError: No value was found.
        """
        self._value_count += 1
        if depth > MAX_DEPTH:
            self.budget.spend()
            raise UnsatisfiableError("a value would be infinite")
        flattened = self._flattened(schemas)
        unbranched = flattened.merged
        choices = flattened.choices
        attempts = 0
        if flattened.is_possible:
            attempts = max(MAX_ATTEMPTS >> depth, MIN_ATTEMPTS)
        for attempt in range(attempts):
            merged: MergedSchema | None = unbranched
            if choices:
                merged = self._follow_branches(unbranched, choices, depth)
            if merged is None or not merged.types:
                break
            kinds = merged.sole_kind or self._ordered_kinds(
                merged, depth, prefer_suggested=attempt % 2 == 0
            )
            for kind in kinds:
                try:
                    value = self._draw_kind(kind, merged, schemas, depth, name=name)
                    is_valid = not merged.is_doubtful or self.accepts(value, *schemas)
                except (UnsatisfiableError, ArithmeticError):  # bounds beyond the range of floats
                    continue
                if is_valid:
                    return value
                break
            if not choices and not merged.is_doubtful:
                break
        return self._example(unbranched, schemas)

    def is_small(self, depth: int, limit: Size = Size.USUAL) -> bool:
        """Returns True if values at `depth` are to be small, and of a size smaller than `limit`."""
        return self._size < limit or depth >= SMALL_DEPTH or self._value_count > MAX_VALUES

    def accepts(self, value: JSON, *schemas: Schema) -> bool:
        """Returns True if all of `schemas` accept `value`."""
        for schema in schemas:
            if not accepts(self._document, schema, value, self.budget, formats=self._formats):
                return False
        return True

    def _example(self, merged: MergedSchema, schemas: Sequence[Schema]) -> JSON:
        for example in merged.examples():
            if self.accepts(example, *schemas):
                return example
        raise UnsatisfiableError("could not find a value that satisfies the schema")

    def _follow_branches(
        self, merged: MergedSchema, choices: Sequence[Choice], depth: int
    ) -> MergedSchema | None:
        """Returns `merged` with a random option of each choice, or None if no option fits."""
        choices = list(choices)
        while choices and merged.types:
            options = choices.pop()
            self.budget.spend(1 + len(options) // MEMBERS_PER_STEP)
            for option in self._ordered_options(options, depth):
                plain = list(merged.schemas)
                self.budget.spend(len(plain) // MEMBERS_PER_STEP)
                open_choices = list(choices)
                if self._flatten(option, plain, open_choices):
                    branched = MergedSchema(plain)
                    if branched.types:
                        choices = open_choices
                        merged = branched
                        break
            else:
                return None
        return merged

    def _ordered_options(self, options: Choice, depth: int) -> Iterator[Option]:
        """Returns the options with finite values in random order; shallow ones first if small."""
        finite: list[tuple[float, Option]] = []
        for option in paced(options):
            min_depth = self._document.min_depth(*option)
            if min_depth != inf:
                finite.append((min_depth, option))
        ordered = shuffled(finite, self.rng)
        if self.is_small(depth):
            ordered = sorted(ordered, key=_min_depth)
        return (option for _, option in ordered)

    def _flattened(self, schemas: Sequence[Schema]) -> Flattened:
        """Returns what `schemas` include, for a step of work more than finding this takes.

        Remembers it for a single schema of the document.
        """
        document = self._document
        if len(schemas) == 1:
            remembered = document.flattened.get(id(schemas[0]))
            if remembered is not None:
                self.budget.spend(1 + remembered.steps)
                return remembered
        self.budget.spend()
        plain: list[Keywords] = []
        choices: list[Choice] = []
        steps_left = self.budget.left
        is_possible = self._flatten(schemas, plain, choices)
        flattened = Flattened(
            MergedSchema(plain), choices, is_possible, steps=steps_left - self.budget.left
        )
        if len(schemas) == 1 and document.has(schemas[0]):
            document.flattened[id(schemas[0])] = flattened
        return flattened

    def _flatten(
        self, schemas: Sequence[Schema], plain: list[Keywords], choices: list[Choice]
    ) -> bool:
        """Adds `schemas` and the schemas that they include to `plain`, and branches to `choices`.

        Returns False if no value is possible.
        """
        stack = list(schemas)
        known = set(map(id, plain))
        while stack:
            schema = stack.pop()
            if schema is False or id(schema) in self._document.endless:
                return False
            if schema is True or id(schema) in known:
                self.budget.spend()
                continue
            # An enum is free, as only one of its options is read.
            members = sum([len(part) for part in schema.values() if isinstance(part, (list, dict))])
            members -= len(schema.get("enum", ()))
            self.budget.spend(1 + members // MEMBERS_PER_STEP)
            plain.append(schema)
            known.add(id(schema))
            if not COMBINING_KEYWORDS.isdisjoint(schema):
                stack += schema.get("allOf", ())
                if "$ref" in schema:
                    stack.append(self._document.definitions[schema["$ref"]])
                choices += _choices(schema)
        return True

    def _draw_option(
        self, merged: MergedSchema, options: list[JSON], schemas: Sequence[Schema]
    ) -> JSON:
        ordered: Sequence[JSON]
        if self._is_brief:
            ordered = sorted(options, key=_text_length)
        elif options and merged.keys() <= ENUM_KEYWORDS:
            return self.rng.choice(options)
        else:
            ordered = shuffled(options, self.rng)
        is_listed = len(merged.schemas) == 1 and merged.keys() <= LISTING_KEYWORDS
        for option in ordered:
            if is_listed and isinstance(option, str) and "string" in merged.types:
                self.budget.spend(len(merged))
                return option
            if self.accepts(option, *schemas):
                return option
        raise UnsatisfiableError("no value in the enum satisfies the schema")

    def _ordered_kinds(
        self, merged: MergedSchema, depth: int, prefer_suggested: bool
    ) -> Sequence[str]:
        """Returns the types to try, in order.

        With `prefer_suggested`, types that the keywords suggest come first.
        """
        types = merged.types
        if "number" in types:
            types = types - {"integer"}
        suggested: set[str] = set()
        if prefer_suggested and len(types) > 1:
            for kind in types:
                if not merged.keys().isdisjoint(SUGGESTING_KEYWORDS.get(kind, ())):
                    suggested.add(kind)
            if not suggested and len(types) > 3:
                suggested.update(types & {"string"})
        first = sorted(suggested)
        others = sorted(types - suggested)
        self.rng.shuffle(first)
        self.rng.shuffle(others)
        if self.is_small(depth):
            others.sort(key=_is_container)
        return first + others

    def _draw_kind(
        self, kind: str, merged: MergedSchema, schemas: Sequence[Schema], depth: int, *, name: str
    ) -> JSON:
        usual = self.usual
        match kind:
            case "enum":
                return self._draw_option(merged, merged.options or [], schemas)
            case "null":
                return None
            case "boolean":
                return self.rng.random() < 0.5
            case "integer":
                integers = self._number_range(
                    usual.min_tool_call_integer_param, usual.max_tool_call_integer_param
                )
                return draw_number(merged, self.rng, integers, whole=True)
            case "number":
                numbers = self._number_range(
                    usual.min_tool_call_number_param, usual.max_tool_call_number_param
                )
                return draw_number(merged, self.rng, numbers, whole=self._is_brief)
            case "string":
                if merged.has_only_types and not self._is_brief:
                    return draw_any_text(name, self.rng, self.budget)
                text_draw = TextDraw(merged, self.rng, self.budget, name, formats=self._formats)
                return text_draw.draw(brief=self._is_brief)
            case "array":
                return ArrayDraw(self, merged, depth, name).draw()
        return ObjectDraw(self, merged, depth).draw()

    def _number_range(self, low: Number, high: Number) -> Range:
        if self._is_brief:
            high = min(high, low + BRIEF_NUMBER_RANGE)
        return Range(low, high)


def _choices(schema: Keywords) -> Iterator[Choice]:
    """Yields the choices between further schemas that `schema` offers."""
    for branches in (schema.get("anyOf"), schema.get("oneOf")):
        if branches is not None:
            yield [[branch] for branch in branches]
    if "if" in schema:
        yield [[schema["if"], schema.get("then", True)], [schema.get("else", True)]]
    for name, dependent in schema.get("dependentSchemas", {}).items():
        yield [[{"required": [name]}, dependent], [{"properties": {name: False}}]]


def _min_depth(item: tuple[float, Option]) -> float:
    return item[0]


def _text_length(option: JSON) -> int:
    return len(str(option))


def _is_container(kind: str) -> bool:
    return kind in ("array", "object")
