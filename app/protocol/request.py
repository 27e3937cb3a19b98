"""What every kind of request has: fields from the wire, and rules over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct


class Request(Struct, kw_only=True):
    """A request body. A subclass lists its fields in vLLM's order: the first that does not fit is reported.

    `lax` maps field names to what the lax conversion takes where the annotation cannot say it; `absent` has
    what rules see in place of fields that are not there, when that is not None.
    """

    lax: ClassVar[Mapping[str, Any]] = {}
    absent: ClassVar[Mapping[str, Any]] = {}

    def check(self) -> None:
        """All rules, for a request from the strict decoder.

        Raises `ApiError`, or `Misfit` where only the raw body can tell.
        """
        self.check_rules(self)

    @staticmethod
    def check_rules(request: Any) -> None:
        """vLLM's own rules in vLLM's order, over a `Request` or a `RawRequest`. Raises `ApiError`."""

    def check_converted(self) -> None:
        """What vLLM looks at only once every field has its type. Raises `ApiError`."""


class RawRequest:
    """Parsed JSON that looks like a request: raw values; `absent`, or None, for those that are not there."""

    def __init__(self, values: Mapping[str, Any], absent: Mapping[str, Any]) -> None:
        self._values = values
        self._absent = absent

    def __getattr__(self, name: str) -> Any:
        values = self._values
        return values[name] if name in values else self._absent.get(name)
