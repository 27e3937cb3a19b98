"""Whether a value satisfies a schema: `jsonschema`, kept within an allowance of work.

Its checks are used as they are, but each costs a step, so that references that multiply end; those
that search with regular expressions or describe whole schemas in messages nobody reads are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from app.schema.document import Document, Schema
from app.schema.equality import Options, identity
from app.schema.errors import Allowance, Unsatisfiable
from app.schema.formats import CHECKER
from app.schema.pattern import Pattern

CHARACTERS_A_STEP = 500
"""Characters of a written value that one more step is asked for: messages repeat the value."""

Check = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class Trial:
    """The judging of one value: what it may cost, and what has been found out on the way."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self._prices: dict[int, int] = {}

    def pay(self, value: Any) -> None:
        """Spend the price of checking `value`, or a part of the value judged, once."""
        price = 1
        if isinstance(value, (str, list, dict)):
            price = self._prices.get(id(value), 0)
            if not price:
                price = self._prices[id(value)] = 1 + len(repr(value)) // CHARACTERS_A_STEP
        self.allowance.spend(price)


_trial: ContextVar[Trial] = ContextVar("trial")


def _matches(pattern: Pattern, text: str) -> bool:
    return pattern.found_in(text, _trial.get().allowance)


def _pattern(validator: Any, pattern: Pattern, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not _matches(pattern, value):
        yield ValidationError("pattern")


def _pattern_properties(
    validator: Any, patterns: Mapping[Pattern, Any], value: Any, schema: Any
) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        for pattern, sub in patterns.items():
            for name, each in value.items():
                if _matches(pattern, name):
                    yield from validator.descend(each, sub)


def _additional(validator: Any, additional: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, dict):
        declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, each in value.items():
            if name not in declared and not any(_matches(pattern, name) for pattern in patterns):
                yield from validator.descend(each, additional)


def _not(validator: Any, refused: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.evolve(schema=refused).is_valid(value):
        yield ValidationError("not")


def _any_of(validator: Any, options: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not any(validator.evolve(schema=option).is_valid(value) for option in options):
        yield ValidationError("anyOf")


def _one_of(validator: Any, options: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if sum(validator.evolve(schema=option).is_valid(value) for option in options) != 1:
        yield ValidationError("oneOf")


def _enum(validator: Any, options: Options, value: Any, schema: Any) -> Iterator[ValidationError]:
    if not options.has(value):
        yield ValidationError("enum")


def _unique_items(validator: Any, wanted: bool, value: Any, schema: Any) -> Iterator[ValidationError]:
    if wanted and isinstance(value, list) and len(set(map(identity, value))) < len(value):
        yield ValidationError("uniqueItems")


def _metered(check: Check) -> Check:
    def metered(validator: Any, wanted: Any, value: Any, schema: Any) -> Any:
        _trial.get().pay(value)
        return check(validator, wanted, value, schema)

    return metered


OWN: Mapping[str, Check] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "not": _not,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "enum": _enum,
    "uniqueItems": _unique_items,
}
MeteredValidator = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator,
    {name: _metered(OWN.get(name, check)) for name, check in Draft202012Validator.VALIDATORS.items()},
)


class Judge:
    """Tells whether values satisfy schemas of `document`."""

    def __init__(self, document: Document) -> None:
        self._asserting = MeteredValidator(document.root, format_checker=CHECKER)
        self._lax = MeteredValidator(document.root)

    def accepts(self, schema: Schema, value: Any, allowance: Allowance, formats: bool) -> bool:
        """True when `value` satisfies `schema`; ``format`` is a rule only with `formats`.

        Raises SchemaError when that takes too much work.
        """
        before = _trial.set(Trial(allowance))
        validator = self._asserting if formats else self._lax
        try:
            return bool(validator.evolve(schema=schema).is_valid(value))
        except ArithmeticError:  # a number too large for the division that multipleOf means
            return False
        except RecursionError:
            raise Unsatisfiable("the schema is too deep to be checked") from None
        finally:
            _trial.reset(before)
