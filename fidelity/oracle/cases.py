"""The form of the catalogue: a `Case` is a request, and an `Area` makes the cases of a subject."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

MODEL = "oracle"
"""Name of the served model."""
JSON_HEADERS = {"Content-Type": "application/json"}
REMOVED = object()
"""As the value of a field: the request does not have this field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A request, and what is compared of its answer besides the shape.

    Attributes:
        name: Unique within the catalogue: the area, then the subject.
        reason: Why a client would notice a difference.
        body: A JSON value, text, or bytes; None sends no body. `${NAME}` in texts, also in paths
            and headers, stands for a value that an earlier case kept.
        values: Further fields whose values are compared, because they are deterministic here.
        ignored: Fields that are not compared, because they are not deterministic here.
        words: Regular expressions. Their first matches in both bodies are equal.
        keep: The name of a value for later cases, and the field of the answer that has it.
        counters: Names of counters that the request increases by equal amounts.
        timeout_s: Time after which the case has no answer; that is an outcome like others.
    """

    name: str
    area: str
    reason: str
    configuration: str = "base"
    method: str = "POST"
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    values: Sequence[str] = ()
    ignored: Sequence[str] = ()
    words: Sequence[str] = ()
    keep: Mapping[str, str] = field(default_factory=dict)
    counters: Sequence[str] = ()
    timeout_s: float = 90.0


class Options(TypedDict, total=False):
    """Attributes of a case that not every case has."""

    configuration: str
    method: str
    path: str
    headers: Mapping[str, str]
    body: object
    values: Sequence[str]
    ignored: Sequence[str]
    words: Sequence[str]
    keep: Mapping[str, str]
    counters: Sequence[str]
    timeout_s: float


class Area:
    """Makes the cases of one subject, and collects them in `cases` in the order of their requests.

    Attributes:
        cases: The cases so far.
    """

    def __init__(
        self,
        name: str,
        *,
        fields: Mapping[str, object] | None = None,
        **options: Unpack[Options],
    ) -> None:
        """`fields` are those of every request; a case adds to them, and replaces them.

        `options` are attributes of all cases, unless a case has its own.
        """
        self.cases: list[Case] = []
        self._name = name
        self._fields = fields
        self._options = options

    def case(
        self,
        name: str,
        reason: str,
        fields: Mapping[str, object] | None = None,
        /,
        **options: Unpack[Options],
    ) -> None:
        """Adds a POST of the area's fields with `fields` on top; `body` replaces all fields."""
        merged = {**(self._fields or {}), **(fields or {})}
        body = {key: value for key, value in merged.items() if value is not REMOVED}
        attributes: Options = {"headers": JSON_HEADERS, "body": body}
        attributes |= self._options
        attributes |= options
        full_name = f"{self._name}: {name}"
        self.cases.append(Case(name=full_name, area=self._name, reason=reason, **attributes))

    def get(self, path: str, reason: str, name: str = "", /, **options: Unpack[Options]) -> None:
        """Adds a GET of `path`, which is its name if it has no other."""
        attributes: Options = {"method": "GET", "path": path, "headers": {}, "body": None}
        attributes |= options
        self.case(name or f"GET {path}", reason, **attributes)

    def each(
        self,
        name: str,
        reason: str,
        values: Sequence[object],
        /,
        **options: Unpack[Options],
    ) -> None:
        """Adds a case for each of the `values` of the field `name`."""
        for value in values:
            label = "absent" if value is REMOVED else repr(value)
            self.case(f"{name} {label[:60]}", reason, {name: value}, **options)

    def sweep(
        self,
        reason: str,
        values_by_field: Mapping[str, Sequence[object]],
        /,
        **options: Unpack[Options],
    ) -> None:
        """Adds a case for each value of each field."""
        for field_name, values in values_by_field.items():
            self.each(field_name, reason, values, **options)

    def variants(
        self,
        reason: str,
        variants: Mapping[str, Mapping[str, object]],
        /,
        **options: Unpack[Options],
    ) -> None:
        """Adds a case for each of the named sets of fields."""
        for name, fields in variants.items():
            self.case(name, reason, fields, **options)
