"""The LoRA adapters that are loaded, and what loading and unloading refuses (vllm-api.md section 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from app.http.errors import ApiError, not_found

Watch = Callable[[str], None]


def nobody(name: str) -> None:
    """Nobody watches."""


class Adapter(Struct, frozen=True):
    """One adapter; `path` is where it came from, or its name."""

    name: str
    path: str


class LoRARegistry:
    """Loaded adapters by name, in order of loading. At most `most` of them, if that is given."""

    def __init__(self, adapters: Iterable[Adapter] = (), most: int | None = None) -> None:
        self._adapters = {adapter.name: adapter for adapter in adapters}
        self._most = most
        self._loaded: Watch = nobody
        self._unloaded: Watch = nobody

    def watch(self, loaded: Watch, unloaded: Watch) -> None:
        """Tell `loaded` and `unloaded` the names of adapters that come and go."""
        self._loaded, self._unloaded = loaded, unloaded

    def path(self, name: str) -> str:
        """Where an adapter came from; nothing for one that is not there (any more)."""
        adapter = self._adapters.get(name)
        return adapter.path if adapter is not None else ""

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def __len__(self) -> int:
        return len(self._adapters)

    def load(self, name: str, path: str, in_place: bool = False) -> None:
        """Add an adapter. ApiError 400 when it is there already and not to be replaced.

        When there are too many, the one that was loaded first is dropped, as from a cache.
        """
        if name in self._adapters and not in_place:
            raise ApiError(400, "InvalidUserInput", f"The adapter {name!r} is loaded already.")
        self._adapters[name] = Adapter(name, path)
        self._loaded(name)
        while self._most is not None and len(self._adapters) > self._most:
            self._drop(next(iter(self._adapters)))

    def unload(self, name: str) -> None:
        """Remove an adapter; its running requests go on. ApiError 404 for one that is not there."""
        if name not in self._adapters:
            raise not_found(f"No adapter {name!r} is loaded.")
        self._drop(name)

    def _drop(self, name: str) -> None:
        del self._adapters[name]
        self._unloaded(name)
