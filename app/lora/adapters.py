"""The LoRA adapters: which are loaded, and which are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from sys import getsizeof
from typing import Protocol

import msgspec
from msgspec import Struct

from config import ConfigError
from config.settings import LoraSettings, ModelSettings

Watch = Callable[[str], None]
RUNTIME_BYTES = 2**20
"""Memory of the adapters that may be loaded at runtime: about 3,000 with paths of usual length."""
ENTRY_BYTES = 128
"""Most bytes of one entry of a dictionary, its share of the free ones included."""


class AdapterError(Exception):
    """An adapter that cannot be loaded or unloaded; the text is one sentence for the client."""


class AdapterAlreadyLoaded(AdapterError):
    """The name is loaded already, and was not to be replaced."""


class AdapterTooLarge(AdapterError):
    """Name and path are longer than all adapters together may be."""


class AdapterNotFound(AdapterError):
    """No adapter has this name."""


class Adapter(Struct, frozen=True):
    """One adapter; `path` is where it came from, or its name, `id` its number in the engine."""

    name: str
    path: str
    id: int = 0

    @property
    def size_bytes(self) -> int:
        """Memory that it takes in a registry."""
        return ENTRY_BYTES + getsizeof(self) + getsizeof(self.name) + getsizeof(self.path)


class _AdapterConfig(Struct):
    """What of `adapter_config.json` is looked at."""

    r: int | None = None


def rank_of(path: str) -> int | None:
    """The rank that the adapter's folder tells; None where there is none that does."""
    try:
        content = (Path(path) / "adapter_config.json").read_bytes()
        return msgspec.json.decode(content, type=_AdapterConfig).r
    except (OSError, ValueError):
        return None


class LoRARegistry:
    """Loaded adapters by name, in order of loading.

    They are numbered from 1 on, and one that replaces another keeps its number. `max-cpu-loras` is no limit
    for them: it bounds copies in memory (`AdapterMemory`). Only the memory of this registry is one,
    `limit_bytes`: what the adapters of the start take, and `RUNTIME_BYTES`. When there are too many, the one
    that was loaded first is dropped, as from a cache.
    """

    def __init__(self, adapters: Iterable[Adapter] = ()) -> None:
        self._ids = count(1)
        self._adapters = {
            adapter.name: Adapter(adapter.name, adapter.path, next(self._ids)) for adapter in adapters
        }
        self.size_bytes = sum(adapter.size_bytes for adapter in self._adapters.values())
        self.limit_bytes = self.size_bytes + RUNTIME_BYTES
        self._watches: list[tuple[Watch, Watch]] = []

    def watch(self, loaded: Watch, unloaded: Watch) -> None:
        """Call `loaded` and `unloaded` with the names of adapters that come and go."""
        self._watches.append((loaded, unloaded))

    def path(self, name: str) -> str:
        """Where an adapter came from; nothing for one that is not there (any more)."""
        adapter = self._adapters.get(name)
        return adapter.path if adapter is not None else ""

    def number(self, name: str) -> int:
        """The engine's number of an adapter, as vLLM counts; 0 for one that is not there (any more)."""
        adapter = self._adapters.get(name)
        return adapter.id if adapter is not None else 0

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def __len__(self) -> int:
        return len(self._adapters)

    def load(self, name: str, path: str, in_place: bool = False) -> None:
        """Add an adapter; with `in_place` it may replace one of that name, whose turn to be dropped it keeps.

        AdapterAlreadyLoaded when it is there and not to be replaced, AdapterTooLarge when it can never fit.
        """
        before = self._adapters.get(name)
        if before is not None and not in_place:
            raise AdapterAlreadyLoaded(f"The adapter {name!r} is loaded already.")
        adapter = Adapter(name, path, before.id if before is not None else next(self._ids))
        if adapter.size_bytes > RUNTIME_BYTES:
            raise AdapterTooLarge(f"Name and path of an adapter must take less than {RUNTIME_BYTES} bytes.")
        self._adapters[name] = adapter
        self.size_bytes += adapter.size_bytes - (before.size_bytes if before is not None else 0)
        for loaded, _ in self._watches:
            loaded(name)
        while self.size_bytes > self.limit_bytes:
            self._drop(next(other for other in self._adapters if other != name))

    def unload(self, name: str) -> None:
        """Remove an adapter; its running requests go on. AdapterNotFound for one that is not there."""
        if name not in self._adapters:
            raise AdapterNotFound(f"No adapter {name!r} is loaded.")
        self._drop(name)

    def _drop(self, name: str) -> None:
        self.size_bytes -= self._adapters.pop(name).size_bytes
        for _, unloaded in self._watches:
            unloaded(name)


class _Module(Struct):
    """One item of `lora-modules`."""

    name: str
    path: str = ""
    base_model_name: str = ""


def adapters_of(lora: LoraSettings, model: ModelSettings) -> LoRARegistry:
    """The adapters of `lora-modules`. ConfigError for an item that is none, or of another base model."""
    modules = [_module(item) for item in lora.lora_modules]
    for module in modules:
        if module.base_model_name not in ("", model.model, *model.served_names):
            other = module.base_model_name
            raise ConfigError(f"setting lora-modules: {module.name!r} is for another model, {other!r}")
        if module.name in model.served_names:
            raise ConfigError(f"setting lora-modules: {module.name!r} is a name of the base model")
    adapters = [Adapter(module.name, module.path or module.name) for module in modules]
    return LoRARegistry(adapters)


def _module(item: str) -> _Module:
    """A JSON object, or `name=path`; as by vLLM, what has no `=` or has a comma is read as JSON."""
    try:
        if "=" in item and "," not in item and not item.lstrip().startswith("{"):
            name, _, path = item.partition("=")
            module = _Module(name.strip(), path.strip())
        else:
            module = msgspec.json.decode(item, type=_Module)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"setting lora-modules: {item!r} is no adapter, neither name=path nor a JSON object: {error}"
        ) from None
    if not module.name:
        raise ConfigError(f"setting lora-modules: {item!r} has no name")
    return module


class UsesAdapters(Protocol):
    """Learns which adapters run."""

    def enter(self, name: str, /) -> None:
        """A request begins to run with the adapter."""

    def leave(self, name: str, /) -> None:
        """Such a request is over."""


class LoRASlots:
    """At most `most` adapters at a time; an idle one makes room for another, the longest idle first.

    `known` says whether an adapter is (still) loaded; one that is not counts as the base model. Their names
    are those of the registry, which bounds them.
    """

    def __init__(self, most: int, known: Callable[[str], bool], memory: UsesAdapters | None = None) -> None:
        self.most = most
        self._known = known
        self._memory = memory
        self._running: dict[str, int] = {}
        """Requests that run with each resident adapter; the one that became idle last stands last."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

    def running(self, adapter: str) -> int:
        """Requests that run with an adapter that is in memory."""
        return self._running.get(adapter, 0)

    def is_ready(self, adapter: str | None) -> bool:
        """True when a request with `adapter` could run without loading anything."""
        return adapter is None or adapter in self._running or not self._known(adapter)

    def has_room(self) -> bool:
        """True when an adapter could be loaded, perhaps in the place of an idle one."""
        return len(self._running) < self.most or 0 in self._running.values()

    def enter(self, adapter: str | None) -> bool:
        """A request begins to run; its adapter is loaded if it is not here. False when it needs none.

        `leave` is to be called only when this was True: an adapter may be unloaded in between.
        """
        if adapter is None or adapter not in self._running and not self._known(adapter):
            return False
        if adapter not in self._running:
            if len(self._running) >= self.most:
                idle = next(name for name, running in self._running.items() if running == 0)
                del self._running[idle]
            self._running[adapter] = 0
        self._running[adapter] += 1
        if self._memory is not None:
            self._memory.enter(adapter)
        return True

    def leave(self, adapter: str) -> None:
        """A request that `enter` counted is over."""
        running = self._running.pop(adapter) - 1
        if running or self._known(adapter):
            self._running[adapter] = running
        if self._memory is not None:
            self._memory.leave(adapter)
