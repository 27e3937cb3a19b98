"""MultiConnector: the union of the `kv_transfer_params` of its parts."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct, defstruct, structs


def union_of(first: Struct | None, second: Struct | None) -> Struct | None:
    """Returns an answer with the fields of both parts, in this order; None if both are None."""
    if first is None:
        return second
    if second is None:
        return first
    values: dict[str, object] = {}
    for part in (first, second):
        for name in part.__struct_fields__:
            values[name] = getattr(part, name)
    return _union_type(type(first), type(second))(**values)


@lru_cache(maxsize=16)
def _union_type(first: type[Struct], second: type[Struct]) -> type[Struct]:
    fields = [(field.name, field.type, field.default) for field in structs.fields(second)]
    return defstruct(f"{first.__name__}And{second.__name__}", fields, bases=(first,), kw_only=True)
