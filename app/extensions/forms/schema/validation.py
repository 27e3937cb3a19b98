"""Validates values with `jsonschema`, within a work budget.

Each check of a keyword costs a step, which stops references that multiply. Checks of `jsonschema`
that search with regular expressions, or write whole schemas into messages, are replaced.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple, TypeAlias, cast

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from app.core.base.clock.pause import paced
from app.extensions.forms.schema.bounds import WorkBudget, WorkExhaustedError
from app.extensions.forms.schema.document import Document
from app.extensions.forms.schema.keywords import (
    JSON,
    EnumValues,
    Keywords,
    Schema,
    canonical_keys,
)
from app.extensions.forms.schema.patterns import Pattern
from app.extensions.forms.schema.text_draw import FORMAT_CHECKER

CHARACTERS_PER_STEP = 500
"""Characters of a value for one more step of a check, as messages repeat the value."""
NAMES_PER_STEP = 256
"""Names of a keyword, such as ``properties``, that a step of a check looks up."""

Predicate: TypeAlias = Callable[[Validator, Any, JSON, Keywords], bool]
"""Returns True if a keyword accepts a value.

Takes the validator, the value of the keyword, the value and the schema.
"""
Check: TypeAlias = Callable[[Validator, object, JSON, Keywords], Iterator[ValidationError]]
"""Yields the errors of a value, from the arguments of a predicate."""

_current: ContextVar["_Validation"] = ContextVar("validation")


class Validators(NamedTuple):
    """The validators of values."""

    asserting: Validator
    """Checks ``format`` as a rule."""
    annotating: Validator
    """Ignores ``format``."""


class _Validation(NamedTuple):
    document: Document
    budget: WorkBudget
    prices: dict[int, int]
    """Steps of a check, by the `id` of each part of the value."""


def accepts(
    document: Document, schema: Schema, value: JSON, budget: WorkBudget, *, formats: bool
) -> bool:
    """Returns True for a valid `value`; `formats` makes ``format`` a rule.

    Raises:
        WorkExhaustedError: The budget is used up, or the schema is nested too deeply.
    """
    token = _current.set(_Validation(document, budget, {}))
    validator = _validators().annotating
    if formats:
        validator = _validators().asserting
    try:
        return _is_valid(validator, schema, value)
    except ArithmeticError:  # a number too large for the division of multipleOf
        return False
    except RecursionError:
        raise WorkExhaustedError("the schema is nested too deeply to be checked") from None
    finally:
        _current.reset(token)


def _is_valid(validator: Validator, schema: Schema, value: JSON) -> bool:
    return validator.evolve(schema=schema).is_valid(value)


def _matches(pattern: Pattern, text: str) -> bool:
    return pattern.matches(text, _current.get().budget)


def _check_reference(validator: Validator, name: str, value: JSON, schema: Keywords) -> bool:
    return _is_valid(validator, _current.get().document.definitions[name], value)


def _check_pattern(validator: Validator, pattern: Pattern, value: JSON, schema: Keywords) -> bool:
    return not isinstance(value, str) or _matches(pattern, value)


def _check_pattern_properties(
    validator: Validator, patterns: dict[Pattern, Schema], value: JSON, schema: Keywords
) -> bool:
    if not isinstance(value, dict):
        return True
    for name, member in value.items():
        for pattern, member_schema in patterns.items():
            if _matches(pattern, name) and not _is_valid(validator, member_schema, member):
                return False
    return True


def _check_additional_properties(
    validator: Validator, additional: Schema, value: JSON, schema: Keywords
) -> bool:
    if not isinstance(value, dict):
        return True
    declared = schema.get("properties", {})
    patterns = schema.get("patternProperties", {})
    for name, member in value.items():
        if name in declared or any(_matches(pattern, name) for pattern in patterns):
            continue
        if not _is_valid(validator, additional, member):
            return False
    return True


def _check_not(validator: Validator, excluded: Schema, value: JSON, schema: Keywords) -> bool:
    return not _is_valid(validator, excluded, value)


def _check_any_of(
    validator: Validator, options: list[Schema], value: JSON, schema: Keywords
) -> bool:
    return any(_is_valid(validator, option, value) for option in paced(options))


def _check_one_of(
    validator: Validator, options: list[Schema], value: JSON, schema: Keywords
) -> bool:
    return sum(_is_valid(validator, option, value) for option in paced(options)) == 1


def _check_enum(validator: Validator, options: EnumValues, value: JSON, schema: Keywords) -> bool:
    return options.has(value)


def _check_unique_items(
    validator: Validator, is_unique: bool, value: JSON, schema: Keywords
) -> bool:
    if not is_unique or not isinstance(value, list):
        return True
    return len(set(canonical_keys(value))) == len(value)


def _check_unevaluated_items(
    validator: Validator, unevaluated: Schema, value: JSON, schema: Keywords
) -> bool:
    if not isinstance(value, list):
        return True
    evaluated = _evaluated_items(validator, schema, value)
    remaining = [item for place, item in enumerate(value) if place not in evaluated]
    return all(_is_valid(validator, unevaluated, item) for item in remaining)


def _check_unevaluated_properties(
    validator: Validator, unevaluated: Schema, value: JSON, schema: Keywords
) -> bool:
    if not isinstance(value, dict):
        return True
    evaluated = _evaluated_names(validator, schema, value)
    remaining = [member for name, member in value.items() if name not in evaluated]
    return all(_is_valid(validator, unevaluated, member) for member in remaining)


def _evaluated_items(validator: Validator, schema: Schema, value: list[JSON]) -> set[int]:
    """Returns the places of the items that `schema` applies a schema to."""
    if isinstance(schema, bool):
        return set()
    evaluated = set(range(len(schema.get("prefixItems", ()))))
    if "items" in schema:
        return set(range(len(value)))
    if "contains" in schema:
        for place, item in enumerate(value):
            if _is_valid(validator, schema["contains"], item):
                evaluated.add(place)
    for included in _included(validator, schema, value):
        evaluated |= _evaluated_items(validator, included, value)
        if not isinstance(included, bool) and "unevaluatedItems" in included:
            return set(range(len(value)))
    return evaluated


def _evaluated_names(validator: Validator, schema: Schema, value: dict[str, JSON]) -> set[str]:
    """Returns the names of the properties that `schema` applies a schema to."""
    if isinstance(schema, bool):
        return set()
    if "additionalProperties" in schema:
        return set(value)
    evaluated = set(schema.get("properties", ()))
    for pattern in schema.get("patternProperties", ()):
        evaluated.update(name for name in value if _matches(pattern, name))
    for included in _included(validator, schema, value):
        evaluated |= _evaluated_names(validator, included, value)
        if not isinstance(included, bool) and "unevaluatedProperties" in included:
            return set(value)
    return evaluated


def _included(validator: Validator, schema: Keywords, value: JSON) -> Iterator[Schema]:
    """Yields the schemas that `schema` includes, and that accept `value`."""
    options = [*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if "$ref" in schema:
        options.append(_current.get().document.definitions[schema["$ref"]])
    if "if" in schema:
        if _is_valid(validator, schema["if"], value):
            options += [schema["if"], schema.get("then", True)]
        else:
            options.append(schema.get("else", True))
    if isinstance(value, dict):
        for name, dependent in schema.get("dependentSchemas", {}).items():
            if name in value:
                options.append(dependent)
    for option in options:
        if _is_valid(validator, option, value):
            yield option


def _metered_checks() -> Mapping[str, Check]:
    """Returns the checks of `jsonschema`, partly replaced; each also spends steps."""
    replaced: Mapping[str, Predicate] = {
        "$ref": _check_reference,
        "pattern": _check_pattern,
        "patternProperties": _check_pattern_properties,
        "additionalProperties": _check_additional_properties,
        "not": _check_not,
        "anyOf": _check_any_of,
        "oneOf": _check_one_of,
        "enum": _check_enum,
        "const": _check_enum,
        "uniqueItems": _check_unique_items,
        "unevaluatedItems": _check_unevaluated_items,
        "unevaluatedProperties": _check_unevaluated_properties,
    }
    checks: dict[str, Check] = {}
    for keyword, check in Draft202012Validator.VALIDATORS.items():
        if keyword in replaced:
            check = _as_check(keyword, replaced[keyword])
        checks[keyword] = _metered(check)
    return checks


def _as_check(keyword: str, predicate: Predicate) -> Check:
    def check(
        validator: Validator, keyword_value: object, value: JSON, schema: Keywords
    ) -> Iterator[ValidationError]:
        if not predicate(validator, keyword_value, value, schema):
            yield ValidationError(keyword)

    return check


def _metered(check: Check) -> Check:
    def metered_check(
        validator: Validator, keyword_value: object, value: JSON, schema: Keywords
    ) -> Iterator[ValidationError]:
        _, budget, prices = _current.get()
        price = 1
        if isinstance(value, (str, list, dict)):
            key = id(value)
            if key not in prices:
                prices[key] = 1 + len(repr(value)) // CHARACTERS_PER_STEP
            price = prices[key]
        if isinstance(keyword_value, dict):
            price += len(keyword_value) // NAMES_PER_STEP
        budget.spend(price)
        return check(validator, keyword_value, value, schema) or iter(())

    return metered_check


@cache
def _validators() -> Validators:
    validator_class = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator, _metered_checks()
    )
    return Validators(
        asserting=cast(Validator, validator_class(True, format_checker=FORMAT_CHECKER)),
        annotating=cast(Validator, validator_class(True)),
    )
