"""A compiled schema, and values drawn from it:

for a random branch of each choice, and again if not valid.
"""

import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from math import inf
from random import Random

from app.engine.forms.schema.bounds import (
    SchemaError,
    Size,
    Unsatisfiable,
    WorkBudget,
    WorkExhausted,
)
from app.engine.forms.schema.document import (
    JSON,
    Document,
    Keywords,
    Number,
    Reader,
    Schema,
    identity,
)
from app.engine.forms.schema.scalars import SUGGESTING, WORDS, MergedSchema, draw_number, draw_text
from app.engine.forms.schema.validation import accepts
from config.settings import ToolSettings

MOST_ITEMS = 4096
"""Items of the longest drawn array."""
SPREAD = 15
"""Most items beyond the fewest, where only the schema sets a limit."""
ITEM_TRIES = 40
"""Draws of one item that must differ from others, or must not match `contains`."""
MOST_PROPERTIES = 1024
"""Properties of the largest drawn object."""
MOST_INVENTED = 3
"""Most entries of a map: an object without declared properties, with a schema for its values."""
NAME_TRIES = 8
SCHEMAS_A_STEP = 8
"""Schemas of one value per step of work, to find their schemas of a part."""


def draw_array(draw: "Draw", merged: MergedSchema, depth: int, name: str) -> list[JSON]:
    """Draws an array called `name`, shorter where no further item is found.

    Raises Unsatisfiable.
    """
    containing = [schema for schema in merged.plain if "contains" in schema]
    missing = [int(schema.get("minContains", 1)) for schema in containing]
    fewest, is_unique = merged.least("minItems"), any(merged.get("uniqueItems", ()))
    items: list[JSON] = []
    seen: set[Hashable] = set()

    def new_item(index: int, wanted: list[Schema], limited: list[Schema]) -> JSON:
        """Draws an item that `wanted` accept, and none of `limited`."""
        draw.budget.spend(len(merged.plain) // SCHEMAS_A_STEP)
        asked = list(wanted)
        for schema in merged.plain:
            prefix = schema.get("prefixItems", ())
            if index < len(prefix):
                asked.append(prefix[index])
            elif "items" in schema:
                asked.append(schema["items"])
        for _ in range(ITEM_TRIES if is_unique or limited else 1):
            item = draw.value(asked, depth + 1, name.removesuffix("s"))
            if any(draw.accepts(item, each) for each in limited):
                continue
            if not is_unique or identity(item) not in seen:
                return item
        raise Unsatisfiable("no new item was found")

    for index in range(_array_length(draw, merged, depth, max(fewest, sum(missing)))):
        wanted = [
            schema["contains"]
            for schema, count in zip(containing, missing, strict=True)
            if count > 0
        ]
        limited = (
            [] if wanted else [each["contains"] for each in containing if "maxContains" in each]
        )
        # An item that all missing `contains` accept, if possible, else any single one, else none.
        for wish in [wanted, *([each] for each in wanted), []] if wanted else [wanted]:
            try:
                item = new_item(index, wish, limited)
                break
            except Unsatisfiable:
                continue
        else:
            if index < fewest:
                raise Unsatisfiable("no item was found that satisfies the schema")
            break
        items.append(item)
        if is_unique:
            seen.add(identity(item))
        for number, schema in enumerate(containing):
            if missing[number] > 0:
                missing[number] -= draw.accepts(item, schema["contains"])
    if any(count > 0 for count in missing):
        raise Unsatisfiable("an array does not contain what it has to")
    return items


def _array_length(draw: "Draw", merged: MergedSchema, depth: int, fewest: int) -> int:
    """Draws the number of items, in the usual range if the schema allows (simulator.md 7.4)."""
    if fewest > MOST_ITEMS:
        raise Unsatisfiable("an array would be too long")
    if draw.is_small(depth):
        return fewest
    low, most = fewest, merged.most("maxItems", MOST_ITEMS)
    if "minItems" not in merged:
        prefixes = map(len, merged.get("prefixItems", ()))
        low = max(fewest, draw.usual.min_tool_call_array_param_length, *prefixes)
    low = min(low, most, MOST_ITEMS)
    usual = draw.usual.max_tool_call_array_param_length
    high = min(most, low + SPREAD) if "maxItems" in merged else max(usual, low)
    return draw.rng.randint(low, min(high, MOST_ITEMS))


class ObjectDraw:
    """Draws an object, its declared properties first."""

    def __init__(self, draw: "Draw", merged: MergedSchema, depth: int) -> None:
        self._merged, self._draw, self._depth = merged, draw, depth
        self._most = min(merged.most("maxProperties", MOST_PROPERTIES), MOST_PROPERTIES)
        self._name_rules = merged.get("propertyNames", ())
        self._value: dict[str, JSON] = {}

    def draw(self) -> dict[str, JSON]:
        merged, draw, value = self._merged, self._draw, self._value
        fewest, usual = merged.least("minProperties"), draw.usual
        if fewest > MOST_PROPERTIES:
            raise Unsatisfiable("an object would be too large")
        self._add(list(chain.from_iterable(merged.get("required", ()))))
        percent = usual.tool_call_not_required_param_probability
        if self._depth:
            percent = usual.object_tool_call_not_required_field_probability
        chance = percent / 100
        declared = dict.fromkeys(chain.from_iterable(merged.get("properties", ())))
        if left := [name for name in declared if name not in value]:
            small = draw.is_small(self._depth + 1)
            self._add_until(
                sys.maxsize, [name for name in left if draw.rng.random() < chance and not small]
            )
            if not value and chance and not draw.is_small(self._depth + 1, Size.BRIEF):
                self._add_until(1, draw.rng.sample(left, len(left)))  # not empty by chance
        wanted = max(fewest, 0 if declared else self._map_entries())
        if len(value) < wanted:
            self._add_until(wanted, chain(left, self._invented(wanted)))
        if len(value) < fewest:
            raise Unsatisfiable("no more properties were found for an object")
        return {name: value[name] for name in (*declared, *value) if name in value}

    def _add_until(self, wanted: int, names: Iterable[str]) -> None:
        """Adds those of `names` that can be added, until there are `wanted` properties."""
        for name in names:
            with suppress(Unsatisfiable):
                self._add([name])
            if len(self._value) >= wanted:
                return

    def _add(self, names: list[str]) -> None:
        """Draws `names` and their required properties.

        On Unsatisfiable the value stays unchanged.
        """
        added: list[str] = []
        try:
            for name in names:  # the list grows meanwhile
                if name in self._value:
                    continue
                if len(self._value) >= self._most or not self._draw.accepts(
                    name, *self._name_rules
                ):
                    raise Unsatisfiable("a property cannot be added")
                self._value[name] = self._draw.value(self._schemas(name), self._depth + 1, name)
                added.append(name)
                for needed in self._merged.get("dependentRequired", ()):
                    names += needed.get(name, ())
        except Unsatisfiable:
            for name in added:
                del self._value[name]
            raise

    def _schemas(self, name: str) -> list[Schema]:
        self._draw.budget.spend(len(self._merged.plain) // SCHEMAS_A_STEP)
        asked: list[Schema] = []
        for schema in self._merged.plain:
            own = [schema["properties"][name]] if name in schema.get("properties", ()) else []
            patterns = schema.get("patternProperties", {}).items()
            own += [each for pattern, each in patterns if pattern.found_in(name, self._draw.budget)]
            if not own and "additionalProperties" in schema:
                own.append(schema["additionalProperties"])
            asked += own
        return asked

    def _map_entries(self) -> int:
        """Draws the number of entries of a map, which declares no properties; 0 for other objects."""
        values = self._merged.get("additionalProperties", ())
        has_rule = values or "patternProperties" in self._merged
        if not has_rule or False in values or self._draw.is_small(self._depth):
            return 0
        most = min(MOST_INVENTED, self._most)
        return self._draw.rng.randint(min(1, most), most)

    def _invented(self, wanted: int) -> Iterator[str]:
        """Yields names: from `patternProperties`, from `propertyNames`, or plain words."""
        patterns = [
            pattern for each in self._merged.get("patternProperties", ()) for pattern in each
        ]
        rules: list[list[Schema]] = [
            [*self._name_rules, {"pattern": pattern}] for pattern in patterns
        ]
        if self._name_rules:
            rules.append(self._name_rules)
        for number in range(wanted + NAME_TRIES):
            for schemas in rules:
                with suppress(Unsatisfiable):
                    yield str(self._draw.value([{"type": ["string"]}, *schemas], self._depth + 1))
            if not self._name_rules:
                word = WORDS[number % len(WORDS)]
                yield word if number < len(WORDS) else f"{word}{number // len(WORDS) + 1}"


DEEP = 5
"""Levels of nesting after which values are kept small: no optional fields, shallow branches."""
DEEPEST = 64
PLENTY = 150
"""Drawn values after which further ones are kept small."""
MOST_TRIES, FEWEST_TRIES = 16, 3
"""Draws for one place of the value, at the top and at least; each level has half as many."""
COMBINING = frozenset(("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"))
"""Keywords that apply further schemas to the same value."""
ENUM = frozenset(("enum", "default", "examples"))
"""Keywords beside which every option is valid."""
DIGITS = 9
"""Greatest distance of a brief number from the start of the usual range."""
MOST_SHUFFLED = 1000
"""Most options of an ``enum`` tried in random order; more are tried in theirs, from a random start.
"""
MEMBERS_A_STEP = 16
"""Members of a list or map that are read per step of work."""
Choice = list[list[Schema]]
"""Options, each a list of further schemas that apply."""


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
        formats: bool,
        size: Size,
    ) -> None:
        self.rng, self.usual, self.budget = rng, usual, budget
        self._document, self._formats = document, formats
        self._size, self._brief = size, size <= Size.BRIEF
        self._drawn = 0

    def value(self, schemas: Sequence[Schema], depth: int = 0, name: str = "") -> JSON:
        """Returns a value that all of `schemas` accept, `depth` levels down.

        Raises Unsatisfiable.
        """
        self._drawn += 1
        self.budget.spend()
        if depth > DEEPEST:
            raise Unsatisfiable("a value would have no end")
        plain: list[Keywords] = []
        choices: list[Choice] = []
        tries = (
            max(MOST_TRIES >> depth, FEWEST_TRIES) if self._flatten(schemas, plain, choices) else 0
        )
        unbranched = MergedSchema(plain)
        for attempt in range(tries):
            merged = self._branched(unbranched, choices, depth) if choices else unbranched
            if merged is None or not merged.types:
                break
            for kind in self._kinds(merged, depth, attempt % 2 == 0):
                # Bounds beyond the range of floats are an ArithmeticError.
                with suppress(Unsatisfiable, ArithmeticError):
                    value = self._of_type(kind, merged, schemas, depth, name)
                    if not merged.is_doubtful or self.accepts(value, *schemas):
                        return value
                    break
            if not choices and not merged.is_doubtful:
                break
        for example in unbranched.examples():
            if self.accepts(example, *schemas):
                return example
        raise Unsatisfiable("no value was found that satisfies the schema")

    def is_small(self, depth: int, below: Size = Size.USUAL) -> bool:
        """Returns True when values at `depth` are to be small, and of a size smaller than `below`."""
        return self._size < below or depth >= DEEP or self._drawn > PLENTY

    def accepts(self, value: JSON, *schemas: Schema) -> bool:
        document, budget, formats = self._document, self.budget, self._formats
        return all(accepts(document, schema, value, budget, formats) for schema in schemas)

    def _branched(
        self, merged: MergedSchema, choices: Sequence[Choice], depth: int
    ) -> MergedSchema | None:
        """Returns `merged` with a random option of each choice; None without a fitting option."""
        choices = list(choices)
        while choices and merged.types:
            options = choices.pop()
            self.budget.spend(1 + len(options) // MEMBERS_A_STEP)
            depths = [(self._document.min_depth(*option), option) for option in options]
            ordered = [(levels, option) for levels, option in depths if levels != inf]
            self.rng.shuffle(ordered)
            if self.is_small(depth):  # shallow ones first
                ordered.sort(key=lambda each: each[0])
            for _, option in ordered:
                more, open_choices = list(merged.plain), list(choices)
                if (
                    self._flatten(option, more, open_choices)
                    and (found := MergedSchema(more)).types
                ):
                    choices, merged = open_choices, found
                    break
            else:
                return None
        return merged

    def _flatten(
        self, schemas: Sequence[Schema], plain: list[Keywords], choices: list[Choice]
    ) -> bool:
        """Adds `schemas` to `plain`, their branches to `choices`; returns False without a possible
        value.
        """
        waiting = list(schemas)
        while waiting:
            schema = waiting.pop()
            if schema is False or id(schema) in self._document.endless:
                return False
            if schema is True or (plain and any(schema is each for each in plain)):
                self.budget.spend()
                continue
            # An enum is free, as only one of its options is read.
            members = sum([len(each) for each in schema.values() if isinstance(each, (list, dict))])
            self.budget.spend(1 + (members - len(schema.get("enum", ()))) // MEMBERS_A_STEP)
            plain.append(schema)
            if COMBINING.isdisjoint(schema):
                continue
            waiting += schema.get("allOf", ())
            if "$ref" in schema:
                waiting.append(self._document.definitions[schema["$ref"]])
            for branches in (schema.get("anyOf"), schema.get("oneOf")):
                if branches is not None:
                    choices.append([[branch] for branch in branches])
            if "if" in schema:
                choices.append(
                    [[schema["if"], schema.get("then", True)], [schema.get("else", True)]]
                )
            for name, dependent in schema.get("dependentSchemas", {}).items():
                choices.append([[{"required": [name]}, dependent], [{"properties": {name: False}}]])
        return True

    def _option(self, merged: MergedSchema, options: list[JSON], schemas: Sequence[Schema]) -> JSON:
        ordered: Sequence[JSON]
        if self._brief:
            ordered = sorted(options, key=lambda option: len(str(option)))
        elif options and merged.keys() <= ENUM:
            return self.rng.choice(options)
        elif len(options) <= MOST_SHUFFLED:
            ordered = self.rng.sample(options, len(options))
        else:
            start = self.rng.randrange(len(options))
            ordered = options[start:] + options[:start]
        for option in ordered:
            if self.accepts(option, *schemas):
                return option
        raise Unsatisfiable("no option of the enum satisfies the schema")

    def _kinds(self, merged: MergedSchema, depth: int, hinted: bool) -> list[str]:
        """Returns the types to try, in order; with `hinted`, types that the keywords suggest come
        first.
        """
        if merged.options is not None:
            return ["enum"]
        types = merged.types - {"integer"} if "number" in merged.types else merged.types
        likely = set[str]()
        if hinted and len(types) > 1:
            likely = {
                kind for kind in types if not merged.keys().isdisjoint(SUGGESTING.get(kind, ()))
            }
        if not likely and hinted and len(types) > 3:
            likely = types & {"string"}
        first, rest = sorted(likely), sorted(types - likely)
        self.rng.shuffle(first)
        self.rng.shuffle(rest)
        if self.is_small(depth):
            rest.sort(key=lambda kind: kind in ("array", "object"))
        return first + rest

    def _of_type(
        self, kind: str, merged: MergedSchema, schemas: Sequence[Schema], depth: int, name: str
    ) -> JSON:
        match kind:
            case "enum":
                return self._option(merged, merged.options or [], schemas)
            case "null":
                return None
            case "boolean":
                return self.rng.random() < 0.5
            case "integer":
                low, high = (
                    self.usual.min_tool_call_integer_param,
                    self.usual.max_tool_call_integer_param,
                )
                return draw_number(merged, self.rng, self._range(low, high), whole=True)
            case "number":
                least, most = (
                    self.usual.min_tool_call_number_param,
                    self.usual.max_tool_call_number_param,
                )
                return draw_number(merged, self.rng, self._range(least, most), whole=self._brief)
            case "string":
                return draw_text(merged, self.rng, self.budget, name, self._formats, self._brief)
            case "array":
                return draw_array(self, merged, depth, name)
        return ObjectDraw(self, merged, depth).draw()

    def _range(self, low: Number, high: Number) -> tuple[Number, Number]:
        return low, min(high, low + DIGITS) if self._brief else high


STEPS = 12_000
"""Steps of one draw with all its attempts: about 100 ms of work."""
ATTEMPTS = 6
"""Values drawn and validated before giving up, the first half with ``format`` as a rule."""
ENTRY_BYTES, BYTES_A_SCHEMA, BYTES_A_CHARACTER = 800, 600, 14
"""Most memory of a kept schema, of each object in it, and of each character of its JSON; measured.
"""


class CompiledSchema:
    """The schema in the JSON `text`, ready to draw from; `size_bytes` is its greatest memory."""

    def __init__(self, text: bytes, lenient: bool) -> None:
        """Raises SchemaError."""
        try:
            self._document = Reader(text, lenient).document()
        except RecursionError:
            raise SchemaError("the schema is too deep") from None
        held = BYTES_A_SCHEMA * text.count(b"{") + BYTES_A_CHARACTER * len(text)
        self.size_bytes = ENTRY_BYTES + held + self._document.pattern_bytes

    def sample(self, rng: Random, usual: ToolSettings, size: Size = Size.USUAL) -> JSON:
        """Returns a JSON value that satisfies the schema, of `size` or, where that fails, smaller.

        The value is valid with ``format`` as an annotation, as in the specification, and also with
        ``format`` as a rule if such a value is found.

        Raises SchemaError without a value, after about 100 ms of work at most. Pauses for other
        greenlets.
        """
        budget, root, lax = WorkBudget(STEPS), self._document.root, list[JSON]()
        try:
            for attempt in range(ATTEMPTS):
                formats = attempt < ATTEMPTS // 2
                tried = min(size, Size.FRUGAL) if attempt % 2 else size
                with suppress(Unsatisfiable):
                    value = Draw(self._document, usual, rng, budget, formats, tried).value([root])
                    if accepts(self._document, root, value, budget, formats=False):
                        if formats or accepts(self._document, root, value, budget, formats=True):
                            return value
                        lax.append(value)
        except RecursionError:
            raise WorkExhausted("the schema is too deep to be satisfied") from None
        except WorkExhausted:
            if not lax:
                raise
        if not lax:
            raise Unsatisfiable("no value was found that satisfies the schema")
        return lax[0]

    def accepts(self, value: JSON) -> bool:
        """Returns True for a valid `value`; ``format`` is an annotation. Raises SchemaError."""
        return accepts(self._document, self._document.root, value, WorkBudget(STEPS), formats=False)
