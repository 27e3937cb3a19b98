"""Whether a value satisfies a schema: `jsonschema`, kept within an allowance of work.

Its checks are used as they are, but each costs a step, so that references that multiply end; those
that search with regular expressions, or write whole schemas into messages, are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from app.schema.document import JSON, Document, Keywords, Options, Schema, identities
from app.schema.errors import Allowance, Unsatisfiable
from app.schema.formats import CHECKER
from app.schema.patterns import Pattern

CHARACTERS_A_STEP = 500
"""Characters of a written value that one more step is asked for: messages repeat the value."""


class Validator(Protocol):
    """What is used of a validator of `jsonschema`."""

    def evolve(self, *, schema: Schema) -> Validator:
        """The same for another schema."""

    def is_valid(self, instance: JSON) -> bool:
        """True when `instance` satisfies the schema."""

    def descend(self, instance: JSON, schema: Schema) -> Iterator[ValidationError]:
        """What is wrong with a part of the value."""


Errors: TypeAlias = Iterator[ValidationError]
Check: TypeAlias = Callable[[Validator, Any, JSON, Keywords], Errors]
"""Tells what is wrong with a value by one keyword: validator, what the keyword holds, value, schema."""


class Trial:
    """The judging of one value of `document`: what it may cost, and what has been found out on the way."""

    def __init__(self, document: Document, allowance: Allowance) -> None:
        self.document = document
        self.allowance = allowance
        self._prices: dict[int, int] = {}

    def pay(self, value: JSON) -> None:
        """Spend the price of checking `value`, or a part of the value judged, once."""
        price = 1
        if isinstance(value, (str, list, dict)):
            price = self._prices.get(id(value), 0)
            if not price:
                price = self._prices[id(value)] = 1 + len(repr(value)) // CHARACTERS_A_STEP
        self.allowance.spend(price)

    def matches(self, pattern: Pattern, text: str) -> bool:
        """True when some part of `text` matches."""
        return pattern.found_in(text, self.allowance)


_trial: ContextVar[Trial] = ContextVar("trial")


def _reference(validator: Validator, name: str, value: JSON, schema: Keywords) -> Errors:
    if not validator.evolve(schema=_trial.get().document.definitions[name]).is_valid(value):
        yield ValidationError("$ref")


def _pattern(validator: Validator, pattern: Pattern, value: JSON, schema: Keywords) -> Errors:
    if isinstance(value, str) and not _trial.get().matches(pattern, value):
        yield ValidationError("pattern")


def _pattern_properties(
    validator: Validator, patterns: Mapping[Pattern, Schema], value: JSON, schema: Keywords
) -> Errors:
    if isinstance(value, dict):
        matches = _trial.get().matches
        for pattern, sub in patterns.items():
            for name, each in value.items():
                if matches(pattern, name):
                    yield from validator.descend(each, sub)


def _additional(validator: Validator, additional: Schema, value: JSON, schema: Keywords) -> Errors:
    if isinstance(value, dict):
        matches = _trial.get().matches
        declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            if name not in declared and not any(matches(pattern, name) for pattern in patterns):
                yield from validator.descend(each, additional)


def _not(validator: Validator, refused: Schema, value: JSON, schema: Keywords) -> Errors:
    if validator.evolve(schema=refused).is_valid(value):
        yield ValidationError("not")


def _any_of(validator: Validator, options: list[Schema], value: JSON, schema: Keywords) -> Errors:
    if not any(validator.evolve(schema=option).is_valid(value) for option in options):
        yield ValidationError("anyOf")


def _one_of(validator: Validator, options: list[Schema], value: JSON, schema: Keywords) -> Errors:
    if sum(validator.evolve(schema=option).is_valid(value) for option in options) != 1:
        yield ValidationError("oneOf")


def _options(validator: Validator, options: Options, value: JSON, schema: Keywords) -> Errors:
    if not options.has(value):
        yield ValidationError("enum")


def _unique_items(validator: Validator, wanted: bool, value: JSON, schema: Keywords) -> Errors:
    slices = _trial.get().allowance.slices
    if wanted and isinstance(value, list) and len(set(identities(value, slices))) < len(value):
        yield ValidationError("uniqueItems")


def _metered(check: Check) -> Check:
    def metered(validator: Validator, wanted: object, value: JSON, schema: Keywords) -> Errors:
        _trial.get().pay(value)
        return check(validator, wanted, value, schema)

    return metered


OWN: Mapping[str, Check] = {
    "$ref": _reference,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "not": _not,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "enum": _options,
    "const": _options,
    "uniqueItems": _unique_items,
}
MeteredValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _metered(OWN.get(name, check)) for name, check in Draft202012Validator.VALIDATORS.items()},
)
ASSERTING = cast(Validator, MeteredValidator(True, format_checker=CHECKER))
LAX = cast(Validator, MeteredValidator(True))
"""Validators that others are made of: with ``format`` as a rule, and as a remark."""


class Judge:
    """Tells whether values satisfy schemas of `document`."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def accepts(self, schema: Schema, value: JSON, allowance: Allowance, formats: bool) -> bool:
        """True when `value` satisfies `schema`; ``format`` is a rule only with `formats`.

        Raises SchemaError when that takes too much work.
        """
        before = _trial.set(Trial(self._document, allowance))
        validator = ASSERTING if formats else LAX
        try:
            return validator.evolve(schema=schema).is_valid(value)
        except ArithmeticError:  # a number too large for the division that multipleOf means
            return False
        except RecursionError:
            raise Unsatisfiable("the schema is too deep to be checked") from None
        finally:
            _trial.reset(before)
