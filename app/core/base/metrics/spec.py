"""One row of the table of metric families."""

from collections.abc import Mapping
from functools import partial
from typing import Literal

from msgspec import Struct

Kind = Literal["counter", "gauge", "histogram"]
Bounds = tuple[float, ...]
Values = tuple[str, ...]
SERVER = ("model_name", "engine")
"""Labels of families that identify the server."""


class Spec(Struct, frozen=True):
    """One row of the table.

    `bounds`: a histogram's; None for bounds that follow the context length. `base`: labels that
    identify the server. `extra`: further labels with their values. `alias_of`: family with the same
    numbers. `value`: initial value of the series.
    """

    name: str
    kind: Kind
    help: str
    bounds: Bounds | None = None
    base: Values = SERVER
    extra: Mapping[str, Values] = {}
    alias_of: str | None = None
    value: float = 0


def _spec(
    kind: Kind,
    name: str,
    help: str,
    bounds: Bounds | None = None,
    base: Values = SERVER,
    alias_of: str | None = None,
    **extra: Values,
) -> Spec:
    return Spec(f"vllm:{name}", kind, help, bounds, base, extra, alias_of)


counter = partial(_spec, "counter")
gauge = partial(_spec, "gauge")
histogram = partial(_spec, "histogram")
