"""Resolves references within one schema; no other document is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

from app.schema.document import JSON
from app.schema.keywords import LISTS_OF_SCHEMAS, MAPS_OF_SCHEMAS, SCHEMAS

LONGEST = 2000
"""Characters of the longest reference, and of the longest ``$id``, that leads anywhere."""


class Target(NamedTuple):
    """A schema as it was sent, and the URI that references in it are relative to."""

    raw: JSON
    base: str


class References:
    """Finds what references name: by JSON pointer, by ``$anchor`` or by ``$id``.

    `id_keyword` is ``id`` in Draft 4. Ids and anchors are collected when first asked for.
    """

    def __init__(self, root: JSON, id_keyword: str) -> None:
        self._id_keyword = id_keyword
        self.root = Target(root, self.base_of(root, ""))
        self._resources = {self.root.base: self.root, "": self.root}
        self._anchors: dict[tuple[str, str], Target] | None = None

    def base_of(self, raw: JSON, base: str) -> str:
        """Returns the URI that references in `raw` are relative to; `base` is that of the schema around."""
        own = raw.get(self._id_keyword) if isinstance(raw, dict) else None
        return _joined(base, own).partition("#")[0] if isinstance(own, str) else base

    def find(self, reference: str, base: str) -> Target | None:
        """Returns the target of `reference` in a schema with that `base`; None where there is none."""
        if len(reference) > LONGEST:
            return None
        uri, fragment = urldefrag(_joined(base, reference))
        fragment = unquote(fragment)
        if uri not in self._resources or (fragment and not fragment.startswith("/")):
            anchors = self._collected()
            if fragment and not fragment.startswith("/"):
                return anchors.get((uri, fragment))
        resource = self._resources.get(uri)
        return resource and self._follow(resource, fragment)

    def _follow(self, target: Target, pointer: str) -> Target | None:
        """Returns the target of a JSON pointer (RFC 6901) that starts from `target`."""
        raw, base = target
        for part in pointer.split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(raw, dict) and name in raw:
                raw = raw[name]
            elif isinstance(raw, list) and name.isdecimal() and int(name) < len(raw):
                raw = raw[int(name)]
            else:
                return None
            base = self.base_of(raw, base)
        return Target(raw, base)

    def _collected(self) -> dict[tuple[str, str], Target]:
        """Returns all anchors, by the URI that they belong to, and notes the schemas with ids."""
        if self._anchors is not None:
            return self._anchors
        self._anchors = {}
        waiting = [self.root]
        while waiting:
            target = waiting.pop()
            self._note(target, self._anchors)
            for raw in _schemas_in(target.raw):
                waiting.append(Target(raw, self.base_of(raw, target.base)))
        return self._anchors

    def _note(self, target: Target, anchors: dict[tuple[str, str], Target]) -> None:
        raw, base = target
        if not isinstance(raw, dict):
            return
        own = raw.get(self._id_keyword)
        if isinstance(own, str):
            if own.startswith("#"):  # how drafts up to 7 write an anchor
                anchors.setdefault((base, own[1:]), target)
            else:
                self._resources.setdefault(base, target)
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = raw.get(keyword)
            if isinstance(name, str):
                anchors.setdefault((base, name), target)


def _joined(base: str, reference: str) -> str:
    """Returns `reference` joined to `base`, or unchanged where one of them is no URI."""
    if not base or not reference or len(reference) > LONGEST:
        return reference or base
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _schemas_in(raw: JSON) -> Iterator[JSON]:
    """Yields the schemas directly inside of `raw`."""
    if not isinstance(raw, dict):
        return
    for keyword, value in raw.items():
        if isinstance(value, list) and (keyword in LISTS_OF_SCHEMAS or keyword == "items"):
            yield from value
        elif isinstance(value, dict):
            if keyword in MAPS_OF_SCHEMAS:
                yield from value.values()
            elif keyword in SCHEMAS:
                yield value
