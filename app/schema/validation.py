"""Validates values with `jsonschema`, within a budget of work.

Each check of a keyword costs a step, so that references that multiply end. Checks that search with regular
expressions, or that write whole schemas into messages, are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from app.schema.document import JSON, Document, Keywords, Schema, identity
from app.schema.errors import WorkBudget, WorkExhausted
from app.schema.formats import CHECKER
from app.schema.patterns import Pattern

CHARACTERS_A_STEP = 500
"""Characters of a value for which a check costs one more step, as messages repeat the value."""


class JsonschemaValidator(Protocol):
    """The part of a validator of `jsonschema` that is used here."""

    def evolve(self, *, schema: Schema) -> JsonschemaValidator:
        """Returns a validator for another schema."""

    def is_valid(self, instance: JSON) -> bool:
        """Returns True when `instance` satisfies the schema."""

    def descend(self, instance: JSON, schema: Schema) -> Iterator[ValidationError]:
        """Yields the errors of a part of the value."""


Errors: TypeAlias = Iterator[ValidationError]
Check: TypeAlias = Callable[[JsonschemaValidator, Any, JSON, Keywords], Errors]
"""Yields errors of one keyword: validator, what the keyword holds, value, schema."""


class Validation:
    """The validation of one value of `document`; the sizes of its parts are taken once."""

    def __init__(self, document: Document, budget: WorkBudget) -> None:
        self.document = document
        self.budget = budget
        self._prices: dict[int, int] = {}

    def pay(self, value: JSON) -> None:
        """Spends the steps that one check of `value` costs."""
        price = 1
        if isinstance(value, (str, list, dict)):
            price = self._prices.get(id(value), 0)
            if not price:
                price = self._prices[id(value)] = 1 + len(repr(value)) // CHARACTERS_A_STEP
        self.budget.spend(price)

    def accepts(self, schema: Schema, value: JSON, formats: bool) -> bool:
        """See the function of this name."""
        before = _current.set(self)
        try:
            return (ASSERTING if formats else LAX).evolve(schema=schema).is_valid(value)
        except ArithmeticError:  # a number too large for the division that multipleOf means
            return False
        except RecursionError:
            raise WorkExhausted("the schema is too deep to be checked") from None
        finally:
            _current.reset(before)


_current: ContextVar[Validation] = ContextVar("validation")


def accepts(document: Document, schema: Schema, value: JSON, budget: WorkBudget, formats: bool) -> bool:
    """Returns True when `value` satisfies `schema` of `document`; ``format`` is a rule only with `formats`.

    Raises SchemaError when that takes too much work.
    """
    return Validation(document, budget).accepts(schema, value, formats)


def _found(pattern: Pattern, text: str) -> bool:
    return pattern.found_in(text, _current.get().budget)


def _pattern_properties(
    validator: JsonschemaValidator, patterns: Mapping[Pattern, Schema], value: JSON, schema: Keywords
) -> Errors:
    for name, each in value.items() if isinstance(value, dict) else ():
        for pattern, inner in patterns.items():
            if _found(pattern, name):
                yield from validator.descend(each, inner)


def _additional(validator: JsonschemaValidator, additional: Schema, value: JSON, schema: Keywords) -> Errors:
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, each in value.items() if isinstance(value, dict) else ():
        if name not in declared and not any(_found(pattern, name) for pattern in patterns):
            yield from validator.descend(each, additional)


def _valid(validator: JsonschemaValidator, schema: Schema, value: JSON) -> bool:
    return validator.evolve(schema=schema).is_valid(value)


PREDICATES: Mapping[str, Callable[[JsonschemaValidator, Any, JSON], bool]] = {
    "$ref": lambda validator, name, value: _valid(
        validator, _current.get().document.definitions[name], value
    ),
    "pattern": lambda _, pattern, value: not isinstance(value, str) or _found(pattern, value),
    "not": lambda validator, refused, value: not _valid(validator, refused, value),
    "anyOf": lambda validator, options, value: any(_valid(validator, each, value) for each in options),
    "oneOf": lambda validator, options, value: sum(_valid(validator, each, value) for each in options) == 1,
    "enum": lambda _, options, value: options.has(value),
    "const": lambda _, options, value: options.has(value),
    "uniqueItems": lambda _, wanted, value: (
        not wanted or not isinstance(value, list) or len(set(map(identity, value))) == len(value)
    ),
}


def _check_of(keyword: str) -> Check:
    predicate = PREDICATES[keyword]

    def check(validator: JsonschemaValidator, wanted: object, value: JSON, schema: Keywords) -> Errors:
        if not predicate(validator, wanted, value):
            yield ValidationError(keyword)

    return check


def _metered(check: Check) -> Check:
    def metered(validator: JsonschemaValidator, wanted: object, value: JSON, schema: Keywords) -> Errors:
        _current.get().pay(value)
        return check(validator, wanted, value, schema)

    return metered


CHECKS: Mapping[str, Check] = {
    **Draft202012Validator.VALIDATORS,
    **{keyword: _check_of(keyword) for keyword in PREDICATES},
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
}
MeteredValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: _metered(check) for name, check in CHECKS.items()}
)
ASSERTING = cast(JsonschemaValidator, MeteredValidator(True, format_checker=CHECKER))
"""Validator with ``format`` as a rule."""
LAX = cast(JsonschemaValidator, MeteredValidator(True))
"""Validator with ``format`` as a remark."""
