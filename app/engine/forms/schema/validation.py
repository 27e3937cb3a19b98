"""Validates values with `jsonschema`, within a work budget.

Each check of a keyword costs a step, which stops references that multiply. Checks of `jsonschema`
that search with regular expressions, or write whole schemas into messages, are replaced.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from app.engine.forms.schema.bounds import WorkBudget, WorkExhausted
from app.engine.forms.schema.document import JSON, Document, Keywords, Schema, identity
from app.engine.forms.schema.patterns import Pattern
from app.engine.forms.schema.scalars import CHECKER

CHARACTERS_A_STEP = 500
"""Characters of a value for one more step of a check, as messages repeat the value."""


Predicate: TypeAlias = Callable[[Validator, Any, JSON, Keywords], bool]
"""Returns True when a keyword accepts a value: validator, keyword's value, value, schema."""


class _Validation(NamedTuple):
    document: Document
    budget: WorkBudget
    prices: dict[int, int]
    """Steps of a check, by the `id` of each part of the value."""


_current: ContextVar[_Validation] = ContextVar("validation")


def accepts(
    document: Document, schema: Schema, value: JSON, budget: WorkBudget, formats: bool
) -> bool:
    """Returns True for a valid `value`; ``format`` is a rule with `formats`. Raises SchemaError."""
    before = _current.set(_Validation(document, budget, {}))
    try:
        return _valid(ASSERTING if formats else LAX, schema, value)
    except ArithmeticError:  # a number too large for the division of multipleOf
        return False
    except RecursionError:
        raise WorkExhausted("the schema is too deep to be checked") from None
    finally:
        _current.reset(before)


def _valid(validator: Validator, schema: Schema, value: JSON) -> bool:
    return validator.evolve(schema=schema).is_valid(value)


def _found(pattern: Pattern, text: str) -> bool:
    return pattern.found_in(text, _current.get().budget)


def _additional(validator: Validator, additional: Schema, value: JSON, schema: Keywords) -> bool:
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    return not isinstance(value, dict) or all(
        _valid(validator, additional, each)
        for name, each in value.items()
        if name not in declared and not any(_found(pattern, name) for pattern in patterns)
    )


Check: TypeAlias = Callable[[Validator, object, JSON, Keywords], Iterator[ValidationError]]
PREDICATES: Mapping[str, Predicate] = {
    "$ref": lambda validator, name, value, _: _valid(
        validator, _current.get().document.definitions[name], value
    ),
    "pattern": lambda _, pattern, value, schema: (
        not isinstance(value, str) or _found(pattern, value)
    ),
    "patternProperties": lambda validator, patterns, value, _: (
        not isinstance(value, dict)
        or all(
            _valid(validator, inner, each)
            for name, each in value.items()
            for pattern, inner in patterns.items()
            if _found(pattern, name)
        )
    ),
    "additionalProperties": _additional,
    "not": lambda validator, refused, value, _: not _valid(validator, refused, value),
    "anyOf": lambda validator, options, value, _: any(
        _valid(validator, each, value) for each in options
    ),
    "oneOf": lambda validator, options, value, _: (
        sum(_valid(validator, each, value) for each in options) == 1
    ),
    **dict.fromkeys(("enum", "const"), lambda _, options, value, schema: options.has(value)),
    "uniqueItems": lambda _, wanted, value, schema: (
        not wanted or not isinstance(value, list) or len(set(map(identity, value))) == len(value)
    ),
}


def _metered(keyword: str) -> Check:
    """Returns the check of `keyword`, from `jsonschema` or `PREDICATES`, which also spends steps."""
    library, predicate = Draft202012Validator.VALIDATORS[keyword], PREDICATES.get(keyword)

    def check(
        validator: Validator, wanted: object, value: JSON, schema: Keywords
    ) -> Iterator[ValidationError]:
        _, budget, prices = _current.get()
        price = 1
        if isinstance(value, (str, list, dict)):
            price = prices.get(id(value), 0) or 1 + len(repr(value)) // CHARACTERS_A_STEP
            prices[id(value)] = price
        budget.spend(price)
        if predicate is None:
            return library(validator, wanted, value, schema) or iter(())
        return iter(
            () if predicate(validator, wanted, value, schema) else (ValidationError(keyword),)
        )

    return check


MeteredValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {keyword: _metered(keyword) for keyword in Draft202012Validator.VALIDATORS},
)
ASSERTING = cast(Validator, MeteredValidator(True, format_checker=CHECKER))
"""Validator with ``format`` as a rule."""
LAX = cast(Validator, MeteredValidator(True))
"""Validator with ``format`` as an annotation."""
