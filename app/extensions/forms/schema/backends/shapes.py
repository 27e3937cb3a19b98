"""llguidance's view of a schema: the shapes of its values, their intersections and their failures.

llguidance reduces a schema, and the schemas that it includes, to an object of `Shape`. Shapes are
immutable. Start reading at `Intersection`.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.extensions.forms.schema.backends.work import RefusalError, Work

N = TypeVar("N", int, float)
MAX_INT64 = 2**63 - 1
LONG_INTEGER = 10**18
"""Smallest number of 19 digits; integers beyond such a number have no regular expression."""


class AnyValue(Struct, frozen=True):
    """Any JSON value."""


class NoValue(Struct, frozen=True):
    """No value at all, for `reason`."""

    reason: str


class Null(Struct, frozen=True):
    """Null."""


class Boolean(Struct, frozen=True):
    """One boolean, or both if `value` is None."""

    value: bool | None = None


class Number(Struct, frozen=True):
    """A number within bounds."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    is_integer: bool = False
    multiple: float | None = None


class Text(Struct, frozen=True):
    """A string."""

    min_length: int = 0
    max_length: int | None = None
    literal: str | None = None
    patterns: tuple[str, ...] = ()


class Array(Struct, frozen=True):
    """An array; `items` is None where all further items are accepted."""

    min_items: int = 0
    max_items: int | None = None
    prefix: Sequence["Shape"] = ()
    items: "Shape | None" = None


class Object(Struct, frozen=True):
    """An object; `additional` is None where all further properties are accepted."""

    properties: Mapping[str, "Shape"] = {}
    additional: "Shape | None" = None
    required: frozenset[str] = frozenset()
    min_properties: int = 0
    max_properties: int | None = None

    def shape_of(self, name: str) -> "Shape":
        """Returns the shape of a property."""
        return self.properties.get(name, self.additional or ANY)


class AnyOf(Struct, frozen=True):
    """At least one of `options`."""

    options: Sequence["Shape"]


class OneOf(Struct, frozen=True):
    """Exactly one of `options`."""

    options: Sequence["Shape"]


class Reference(Struct, frozen=True):
    """The schema at `uri`."""

    uri: str


Shape: TypeAlias = (
    AnyValue | NoValue | Null | Boolean | Number | Text | Array | Object | AnyOf | OneOf | Reference
)
ANY = AnyValue()
FALSE = NoValue("schema is false")


class Intersection:
    """Intersects shapes; `resolve` returns the shape of a reference."""

    def __init__(self, resolve: Callable[[str], Shape], work: Work) -> None:
        self._resolve = resolve
        self._work = work

    def of(self, first: Shape, second: Shape) -> Shape:
        """Returns the shape of the values that are in both."""
        with self._work.step():
            return normalized(self._joined(first, second))

    def _joined(self, first: Shape, second: Shape) -> Shape:
        if isinstance(first, AnyValue) or isinstance(second, NoValue):
            return first if isinstance(first, NoValue) else second
        if isinstance(second, AnyValue) or isinstance(first, NoValue):
            return first
        if isinstance(first, Reference):
            return self.of(self._resolve(first.uri), second)
        if isinstance(second, Reference):
            return self.of(first, self._resolve(second.uri))
        for kind in (OneOf, AnyOf):
            if isinstance(first, kind):
                return kind([self.of(option, second) for option in first.options])
            if isinstance(second, kind):
                return kind([self.of(first, option) for option in second.options])
        return self._alike(first, second)

    def _alike(self, first: Shape, second: Shape) -> Shape:
        match first, second:
            case Array(), Array():
                return self._arrays(first, second)
            case Object(), Object():
                return self._objects(first, second)
        return _values(first, second)

    def _arrays(self, first: Array, second: Array) -> Shape:
        prefix: list[Shape] = []
        for place in range(max(len(first.prefix), len(second.prefix))):
            prefix.append(self.of(_item_of(first, place), _item_of(second, place)))
        return Array(
            max(first.min_items, second.min_items),
            _least(first.max_items, second.max_items),
            prefix=prefix,
            items=self._optional(first.items, second.items),
        )

    def _objects(self, first: Object, second: Object) -> Shape:
        properties: dict[str, Shape] = {}
        for name in (*first.properties, *second.properties):
            if name not in properties:
                properties[name] = self.of(first.shape_of(name), second.shape_of(name))
        return object_of(
            Object(
                properties,
                additional=self._optional(first.additional, second.additional),
                required=first.required | second.required,
                min_properties=max(first.min_properties, second.min_properties),
                max_properties=_least(first.max_properties, second.max_properties),
            )
        )

    def _optional(self, first: Shape | None, second: Shape | None) -> Shape | None:
        if first is None or second is None:
            return first or second
        return self.of(first, second)


def object_of(shape: Object) -> Shape:
    """Returns the object, or no value if its counts contradict each other."""
    limit = shape.max_properties
    if limit is not None and shape.min_properties > limit:
        return NoValue("minProperties > maxProperties")
    if limit is not None and len(shape.required) > limit:
        return NoValue("required > maxProperties")
    return shape


def normalized(shape: Shape) -> Shape:
    """Returns the shape without needless choices."""
    if isinstance(shape, AnyOf):
        return _normal_any_of(shape.options)
    if isinstance(shape, OneOf):
        return _normal_one_of(shape.options)
    return shape


def are_disjoint(first: Shape, second: Shape) -> bool:
    """Returns True if it is certain that no value is in both."""
    match first, second:
        case (NoValue(), _) | (_, NoValue()):
            return True
        case (AnyValue() | Reference(), _) | (_, AnyValue() | Reference()):
            return False
        case Boolean(value), Boolean(other):
            return value is not None and other is not None and value != other
        case ((AnyOf(options) | OneOf(options)), _):
            return all(are_disjoint(option, second) for option in options)
        case _, (AnyOf(options) | OneOf(options)):
            return all(are_disjoint(first, option) for option in options)
        case Text(literal=str(text)), Text(literal=str(other_text)):
            return text != other_text
        case Object(), Object():
            names = first.required | second.required
            return any(are_disjoint(first.shape_of(name), second.shape_of(name)) for name in names)
    return type(first) is not type(second)


def number_fault(shape: Number) -> str:
    """Returns why no number is within the bounds, or ""."""
    low, is_above = _lower_bound(shape)
    high, is_below = _upper_bound(shape)
    if low is None or high is None:
        return ""
    if low > high:
        return f"minimum ({low:g}) is greater than maximum ({high:g})"
    if low == high and (is_above or is_below):
        return f"minimum ({low:g}) is equal to maximum ({high:g})"
    step = shape.multiple
    if not step:
        return ""
    first = ceil(low / step) * step
    last = floor(high / step) * step
    first += step * (is_above and first == low)
    last -= step * (is_below and last == high)
    if shape.is_integer:
        first = ceil(first)
        last = floor(last)
    if first > last:
        return f"range [{low:g}, {high:g}] does not contain a multiple of {step:g}"
    return ""


def _values(first: Shape, second: Shape) -> Shape:
    match first, second:
        case Null(), Null():
            return first
        case Boolean(value), Boolean(other):
            if value is None or other is None or value == other:
                return Boolean(other if value is None else value)
            return NoValue("incompatible boolean values")
        case Number(), Number():
            return Number(
                _greatest(first.minimum, second.minimum),
                _least(first.maximum, second.maximum),
                above=_greatest(first.above, second.above),
                below=_least(first.below, second.below),
                is_integer=first.is_integer or second.is_integer,
                multiple=second.multiple if first.multiple is None else first.multiple,
            )
        case Text(), Text():
            return _texts(first, second)
    return NoValue("incompatible types")


def _texts(first: Text, second: Text) -> Shape:
    literals = {first.literal, second.literal} - {None}
    if len(literals) > 1:
        return NoValue("Regex is empty")
    return replace(
        first,
        min_length=max(first.min_length, second.min_length),
        max_length=_least(first.max_length, second.max_length),
        literal=next(iter(literals), None),
        patterns=tuple(dict.fromkeys(first.patterns + second.patterns)),
    )


def _item_of(shape: Array, place: int) -> Shape:
    if place < len(shape.prefix):
        return shape.prefix[place]
    return shape.items or ANY


def _normal_any_of(options: Sequence[Shape]) -> Shape:
    possible: list[Shape] = []
    for option in options:
        if isinstance(option, AnyValue):
            return ANY
        if isinstance(option, AnyOf):
            possible += option.options
        elif not isinstance(option, NoValue):
            possible.append(option)
    return _single(possible, options, "anyOf is empty") or AnyOf(possible)


def _normal_one_of(options: Sequence[Shape]) -> Shape:
    possible: list[Shape] = []
    for option in options:
        if isinstance(option, OneOf):
            possible += option.options
        elif not isinstance(option, NoValue):
            possible.append(option)
    single = _single(possible, options, "oneOf is empty")
    if single is not None:
        return single
    for place, option in enumerate(possible):
        if not all(are_disjoint(option, other) for other in possible[place + 1 :]):
            return OneOf(possible)
    return AnyOf(possible)


def _single(possible: Sequence[Shape], options: Sequence[Shape], empty_reason: str) -> Shape | None:
    """Returns the only possible option, or the first impossible one; None for several options."""
    if not possible:
        return options[0] if options else NoValue(empty_reason)
    if len(possible) == 1:
        return possible[0]
    return None


def _lower_bound(shape: Number) -> tuple[float | None, bool]:
    """Returns the lower bound, and True if it is excluded."""
    if shape.above is not None and (shape.minimum is None or shape.above >= shape.minimum):
        return shape.above, True
    return shape.minimum, False


def _upper_bound(shape: Number) -> tuple[float | None, bool]:
    if shape.below is not None and (shape.maximum is None or shape.below <= shape.maximum):
        return shape.below, True
    return shape.maximum, False


def _greatest(first: N | None, second: N | None) -> N | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)


def _least(first: N | None, second: N | None) -> N | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def check_digits(shape: Number) -> None:
    """Raises RefusalError for a multiple of 0, and bounds that llguidance cannot write."""
    if shape.multiple == 0:
        raise RefusalError("invalid multiple of")
    low, is_above = _lower_bound(shape)
    high, is_below = _upper_bound(shape)
    if not shape.is_integer and any(abs(bound) > MAX_INT64 for bound in (low or 0, high or 0)):
        raise RefusalError("Failed to generate regex for float range")
    if shape.is_integer and low is not None and high is not None:
        first = floor(low) + 1 if is_above else ceil(low)
        last = ceil(high) - 1 if is_below else floor(high)
        if first > last:
            raise RefusalError("Failed to generate regex for integer range")
    is_low_far = low is not None and (low <= -MAX_INT64 or high is None and low >= LONG_INTEGER)
    is_high_far = low is None and high is not None and high <= -LONG_INTEGER
    if is_low_far or is_high_far:
        kind = "integer" if shape.is_integer else "float"
        raise RefusalError(f"Failed to generate regex for {kind} range")
