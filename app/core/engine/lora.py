"""LoRA adapters: registry of loaded ones, and the memory that holds weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Literal

from msgspec import Struct

from config import ConfigError
from config.settings import LoraSettings, ModelSettings
from config.untrusted import UntrustedDataError, decode_untrusted

Level = Literal["cpu", "gpu"]
MAX_AT_RUNTIME = 3_000
"""Maximum adapters loaded at runtime, besides the configured ones."""
MAX_NAME = 4_096
"""Maximum characters of an adapter's name and path together."""


class Adapter(Struct, gc=False, frozen=True):
    """A LoRA adapter: its name, its source path, and its number in the engine."""

    name: str
    path: str = ""
    id: int = 0


class AdapterError(Exception):
    """An adapter that cannot be loaded or unloaded; the text is one sentence for the client."""


class AdapterNotFoundError(AdapterError):
    """No adapter has this name."""


class AdapterUnusableError(AdapterError):
    """The files of an adapter are broken, or need what vLLM does not support."""


class LoRARegistry:
    """Loaded adapters by name, in order of loading.

    Numbers start at 1, and a replacement keeps its number. `max-cpu-loras` does not limit the
    registry: it bounds copies in memory (`AdapterMemory`). Above `capacity` adapters the first
    loaded one is dropped, as from a cache.
    """

    def __init__(self, adapters: Iterable[Adapter] = (), at_runtime: int = MAX_AT_RUNTIME) -> None:
        self._ids = count(1)
        self._adapters = {
            adapter.name: Adapter(adapter.name, adapter.path, next(self._ids))
            for adapter in adapters
        }
        self.capacity = len(self._adapters) + at_runtime
        self.memory: AdapterMemory | None = None
        """Loads and drops copies of the adapters."""

    def adapter(self, name: str) -> Adapter:
        """Returns an adapter; without path, and with number 0, if it is not loaded."""
        return self._adapters.get(name) or Adapter(name)

    def number(self, name: str) -> int:
        """Returns the number of an adapter, which is 0 if it is not loaded."""
        return self.adapter(name).id

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def __len__(self) -> int:
        return len(self._adapters)

    def load(self, name: str, path: str, in_place: bool = False) -> None:
        """Adds an adapter.

        With `in_place` it may replace one of that name, and keeps its place in the order.

        Raises:
            AdapterError: Name and path are too long, or the name is loaded and not `in_place`.
        """
        previous = self._adapters.get(name)
        if previous is not None and not in_place:
            raise AdapterError(
                f"The lora adapter '{name}' has already been loaded. Unload it first, or set "
                "load_inplace."
            )
        if len(name) + len(path) > MAX_NAME:
            raise AdapterError(
                f"The name and the path of an adapter must not exceed {MAX_NAME} characters."
            )
        adapter_id = next(self._ids) if previous is None else previous.id
        self._adapters[name] = Adapter(name, path, adapter_id)
        if self.memory is not None:
            self.memory.load(name)
        if len(self._adapters) > self.capacity:
            self.unload(next(iter(self._adapters)))

    def unload(self, name: str) -> None:
        """Removes an adapter; its running requests continue.

        Raises:
            AdapterNotFoundError: The name is unknown.
        """
        if self._adapters.pop(name, None) is None:
            raise AdapterNotFoundError(f"The lora adapter '{name}' cannot be found.")
        if self.memory is not None:
            self.memory.drop(name)


class LoraModule(Struct):
    """An item of the setting `lora-modules`."""

    name: str
    path: str = ""
    base_model_name: str = ""


def adapters_of(lora: LoraSettings, model: ModelSettings) -> LoRARegistry:
    """Returns the adapters of `lora-modules`.

    Raises:
        ConfigError: An item is malformed, or is for another base model.
    """
    modules = [_module(item) for item in lora.lora_modules]
    for module in modules:
        if module.base_model_name not in ("", model.model, *model.served_names):
            other = module.base_model_name
            raise ConfigError(
                f"setting lora-modules: {module.name!r} is for another model ({other!r})"
            )
        if module.name in model.served_names:
            raise ConfigError(
                f"setting lora-modules: {module.name!r} is already a name for the base model"
            )
    return LoRARegistry([Adapter(module.name, module.path or module.name) for module in modules])


def _module(item: str) -> LoraModule:
    """Parses `name=path`.

    As in vLLM, an item without `=` or with a comma is read as a JSON object.
    """
    name, equals, path = item.partition("=")
    module = LoraModule(name.strip(), path.strip())
    if not equals or "," in item or item.lstrip().startswith("{"):
        try:
            module = decode_untrusted(item, type=LoraModule)
        except UntrustedDataError as error:
            message = (
                f"setting lora-modules: {item!r} is no adapter, neither name=path nor a JSON object"
            )
            raise ConfigError(f"{message}: {error}") from None
    if not module.name:
        raise ConfigError(f"setting lora-modules: {item!r} has no name")
    return module


class AdapterMemory:
    """Keeps the latest used adapters: `max_cpu` in CPU memory and `max_gpu` of these on the GPU.

    An adapter is loaded when the registry gets it, and again when a request needs it after
    eviction. A running adapter is evicted only when all adapters are running.
    """

    def __init__(self, registry: LoRARegistry, max_gpu: int, max_cpu: int) -> None:
        self.max_gpu = max_gpu
        self.max_cpu = max_cpu
        self.loads = 0
        """Number of loads from the path to CPU memory."""
        self.activations = 0
        """Number of moves from CPU memory to the GPU."""
        self._levels: dict[str, Level] = {}
        """Best level of each adapter in memory, the least recently used one first."""
        self._running: Counter[str] = Counter()
        for adapter in registry:
            self.load(adapter.name)
        registry.memory = self

    def __iter__(self) -> Iterator[tuple[str, Level]]:
        return iter(self._levels.items())

    def load(self, name: str) -> None:
        """Reads the adapter from its path, replacing an older copy."""
        self.drop(name)
        self._use(name)

    def drop(self, name: str) -> None:
        """Removes the adapter from memory."""
        self._levels.pop(name, None)

    def enter(self, name: str) -> None:
        """Counts a request that starts to run with the adapter."""
        self._running[name] += 1
        self._use(name)

    def leave(self, name: str) -> None:
        """Counts the end of a request with the adapter."""
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        if self._levels.get(name) == "gpu":
            self._use(name)

    def _use(self, name: str) -> None:
        """Makes the adapter the latest used one, on the GPU."""
        level = self._levels.pop(name, None)
        if level is None:
            self.loads += 1
            while len(self._levels) >= self.max_cpu:
                del self._levels[self._oldest(list(self._levels))]
        if level != "gpu":
            self.activations += 1
            on_gpu = self._on_gpu()
            while len(on_gpu) >= self.max_gpu:
                self._levels[self._oldest(on_gpu)] = "cpu"
                on_gpu = self._on_gpu()
        self._levels[name] = "gpu"

    def _on_gpu(self) -> list[str]:
        return [name for name, level in self._levels.items() if level == "gpu"]

    def _oldest(self, names: list[str]) -> str:
        return next((name for name in names if not self._running[name]), names[0])
