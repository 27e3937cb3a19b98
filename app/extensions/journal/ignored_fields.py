"""Fields of requests that the played version of vLLM does not have, and therefore ignores.

vLLM accepts unknown fields of most requests without an error: a field that a release removed, such
as `guided_json`, has no effect any more, and the answer still has the status 200. Start reading at
`IgnoredFields`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Raw, Struct, UnsetType
from msgspec.structs import fields

from app.core.server.http.route import Route
from app.core.versions.chain import PlayedVersion
from app.core.versions.shape import schemas_of
from config.untrusted import UntrustedDataError, decode_untrusted
from vllm_facts.names import Names, read_names

UNIONS = (Union, UnionType)
SCALARS = frozenset((str, int, float, bool, bytes, NoneType, UnsetType))
MAX_DEPTH = 8
"""Deepest object of a request that is compared with the classes of vLLM."""
Kinds = tuple[type[Struct], ...]


class IgnoredFields:
    """Compares the fields of requests with the fields of vLLM's classes, by route."""

    def __init__(self, routes: Callable[[], Iterable[Route]], version: PlayedVersion) -> None:
        """`routes` returns the routes of the application, and is called at the first request."""
        self._routes = routes
        self._version = version
        self._bodies: Mapping[str, Kinds] | None = None
        self._names: Names | None = None
        self._fields: dict[type[Struct], Mapping[str, Kinds]] = {}

    def find(self, path: str, body: bytes) -> list[str]:
        """Returns the fields with a value that the version ignores, such as `guided_json`.

        Fields of objects have paths, such as `stream_options.interval` and `tools[].strict`. The
        list is empty for routes and objects whose fields are not present.
        """
        if self._bodies is None:
            self._bodies = {route.path: _bodies_of(route) for route in self._routes()}
        kinds = self._bodies.get(path, ())
        if not kinds:
            return []
        try:
            value = decode_untrusted(body)
        except UntrustedDataError:
            return []
        return list(dict.fromkeys(self._ignored(value, kinds, "")))

    def _ignored(self, value: object, kinds: Kinds, path: str) -> Iterator[str]:
        if path.count(".") > MAX_DEPTH:
            return
        if isinstance(value, list):
            for item in value:
                yield from self._ignored(item, kinds, f"{path}[]")
        elif isinstance(value, dict):
            present: dict[str, Kinds] = {}
            for kind in kinds:
                present.update(self._fields_of(kind))
            for name, member in value.items():
                member_path = f"{path}.{name}" if path else name
                if name not in present and member is not None:
                    yield member_path
                elif present.get(name):
                    yield from self._ignored(member, present[name], member_path)

    def _fields_of(self, kind: type[Struct]) -> Mapping[str, Kinds]:
        """Returns the fields that the version's class has, with the structs in them."""
        present = self._fields.get(kind)
        if present is None:
            present = self._read_fields(kind)
            self._fields[kind] = present
        return present

    def _read_fields(self, kind: type[Struct]) -> Mapping[str, Kinds]:
        if self._names is None:
            self._names = read_names()
        present: dict[str, Kinds] = {}
        absent = self._version.documented.absent_fields(kind)
        tag = kind.__struct_config__.tag_field
        if tag is not None:
            present[tag] = ()
        for field in fields(kind):
            if field.name not in absent:
                present[field.encode_name] = structs_of(field.type)
        # Fields that later versions removed are not in the struct, which has those of the newest.
        for schema in schemas_of(kind):
            if schema in self._names.schemas:
                for name in self._names.schemas[schema].fields_in(self._version.release):
                    present.setdefault(name, ())
        return present


def _bodies_of(route: Route) -> Kinds:
    """Returns the structs of a route's body; none if any other type is accepted."""
    if "POST" not in route.methods:
        return ()
    kinds: list[type[Struct]] = []
    for body in route.loaded().docs.body:
        members = structs_of(body)
        if not members:
            return ()
        kinds += members
    return tuple(kinds)


@cache
def structs_of(annotation: Any) -> Kinds:
    """Returns the structs that values of a type, or items of its lists, can be.

    A type that also has other objects, such as a dictionary, has none: their fields are free.
    """
    kinds: list[type[Struct]] = []
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Struct) and member is not Struct:
            kinds.append(member)
        elif member not in SCALARS:
            return ()
    return tuple(kinds)


def _members(annotation: Any) -> Iterator[Any]:
    """Yields the types in unions and lists."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in UNIONS or origin in (list, tuple, Sequence):
        for argument in get_args(annotation):
            yield from _members(argument)
    else:
        yield annotation if annotation is not Raw else object
