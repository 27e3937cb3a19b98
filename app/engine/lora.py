"""LoRA adapters: registry of loaded ones, memory that holds weights, slots of running ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from app.base.metrics.families import EngineFamilies
from app.base.metrics.instruments import Family, Gauge
from app.base.metrics.table import ADAPTERS
from app.engine.kvcache.hashing import Adapter
from config import ConfigError
from config.settings import LoraSettings, ModelSettings

Level = Literal["cpu", "gpu"]
MOST_AT_RUNTIME = 3_000
"""Most adapters loaded at runtime, besides the configured ones."""
LONGEST_NAME = 4_096
"""Most characters of an adapter's name and path together."""


class AdapterError(Exception):
    """An adapter that cannot be loaded or unloaded; the text is one sentence for the client."""


class AdapterNotFound(AdapterError):
    """No adapter has this name."""


def rank_of(path: str) -> int | None:
    """Reads the rank from the adapter's folder; None without one."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        rank = msgspec.json.decode((Path(path) / "adapter_config.json").read_bytes())["r"]
        return rank if isinstance(rank, int) else None
    return None


class LoRARegistry:
    """Loaded adapters by name, in order of loading.

    Numbers start at 1, and a replacement keeps its number. `max-cpu-loras` does not limit the
    registry: it bounds copies in memory (`AdapterMemory`). Above `most` adapters the first loaded
    one is dropped, as from a cache.
    """

    def __init__(self, adapters: Iterable[Adapter] = (), at_runtime: int = MOST_AT_RUNTIME) -> None:
        self._ids = count(1)
        self._adapters = {it.name: Adapter(it.name, it.path, next(self._ids)) for it in adapters}
        self.most = len(self._adapters) + at_runtime
        self.memory: AdapterMemory | None = None
        """Loads and drops copies of the adapters."""

    def adapter(self, name: str) -> Adapter:
        """Returns an adapter; without path, and with number 0, if it is not loaded."""
        return self._adapters.get(name) or Adapter(name)

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def __iter__(self) -> Iterator[Adapter]:
        return iter(self._adapters.values())

    def __len__(self) -> int:
        return len(self._adapters)

    def load(self, name: str, path: str, in_place: bool = False) -> None:
        """Adds an adapter; with `in_place` it may replace one of that name and keeps its place in
        the order.

        AdapterError without `in_place` for a loaded name, and for a long name and path.
        """
        before = self._adapters.get(name)
        if before is not None and not in_place:
            raise AdapterError(f"The adapter {name!r} is loaded already.")
        if len(name) + len(path) > LONGEST_NAME:
            raise AdapterError(
                f"Name and path of an adapter have at most {LONGEST_NAME} characters."
            )
        self._adapters[name] = Adapter(
            name, path, before.id if before is not None else next(self._ids)
        )
        if self.memory is not None:
            self.memory.load(name)
        if len(self._adapters) > self.most:
            self.unload(next(iter(self._adapters)))

    def unload(self, name: str) -> None:
        """Removes an adapter; its running requests continue.

        AdapterNotFound for an unknown name.
        """
        if self._adapters.pop(name, None) is None:
            raise AdapterNotFound(f"No adapter {name!r} is loaded.")
        if self.memory is not None:
            self.memory.drop(name)


class LoraModule(Struct):
    name: str
    path: str = ""
    base_model_name: str = ""


def adapters_of(lora: LoraSettings, model: ModelSettings) -> LoRARegistry:
    """Returns the adapters of `lora-modules`.

    ConfigError for a malformed item or another base model.
    """
    modules = [_module(item) for item in lora.lora_modules]
    for module in modules:
        if module.base_model_name not in ("", model.model, *model.served_names):
            other = module.base_model_name
            raise ConfigError(
                f"setting lora-modules: {module.name!r} is for another model, {other!r}"
            )
        if module.name in model.served_names:
            raise ConfigError(f"setting lora-modules: {module.name!r} is a name of the base model")
    return LoRARegistry([Adapter(module.name, module.path or module.name) for module in modules])


def _module(item: str) -> LoraModule:
    """Parses `name=path`; as in vLLM, an item without `=` or with a comma is read as a JSON object."""
    name, equals, path = item.partition("=")
    module = LoraModule(name.strip(), path.strip())
    if not equals or "," in item or item.lstrip().startswith("{"):
        try:
            module = msgspec.json.decode(item, type=LoraModule)
        except msgspec.DecodeError as error:
            message = (
                f"setting lora-modules: {item!r} is no adapter, neither name=path nor a JSON object"
            )
            raise ConfigError(f"{message}: {error}") from None
    if not module.name:
        raise ConfigError(f"setting lora-modules: {item!r} has no name")
    return module


class AdapterMemory:
    """Keeps the latest used adapters: `most_cpu` in CPU memory and `most_gpu` of these on the GPU.

    An adapter is loaded when the registry gets it, and again when a request needs it after
    eviction. A running adapter is evicted only when all adapters are running.
    """

    def __init__(self, registry: LoRARegistry, most_gpu: int, most_cpu: int) -> None:
        self.most_gpu, self.most_cpu = most_gpu, most_cpu
        self.loads = self.activations = 0
        """Counts so far: loads from the path to CPU memory, and moves from there to the GPU."""
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
        self._levels.pop(name, None)

    def enter(self, name: str) -> None:
        self._running[name] += 1
        self._use(name)

    def leave(self, name: str) -> None:
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        if self._levels.get(name) == "gpu":
            self._use(name)

    def _use(self, name: str) -> None:
        level = self._levels.pop(name, None)
        if level is None:
            self.loads += 1
            while len(self._levels) >= self.most_cpu:
                del self._levels[self._oldest(list(self._levels))]
        if level != "gpu":
            self.activations += 1
            while (
                len(on_gpu := [it for it, at in self._levels.items() if at == "gpu"])
                >= self.most_gpu
            ):
                self._levels[self._oldest(on_gpu)] = "cpu"
        self._levels[name] = "gpu"

    def _oldest(self, names: list[str]) -> str:
        return next((name for name in names if not self._running[name]), names[0])


class LoraResidency:
    """Families of the adapters in `memory`; `rank` returns the rank of an adapter."""

    def __init__(
        self,
        memory: AdapterMemory,
        rank: Callable[[str], int],
        server: Mapping[str, str],
        now: Callable[[], float],
    ) -> None:
        self._memory, self._rank, self._server = memory, rank, server
        self._ranks: dict[str, int] = {}
        """Ranks of the adapters in memory; each is looked up once."""
        self._families = EngineFamilies(ADAPTERS, server, now)
        self._families.counter("max_gpu_lora_adapters").value = memory.most_gpu

    def render(self) -> str:
        memory, counter, histogram = self._memory, self._families.counter, self._families.histogram
        levels = dict(memory)
        self._ranks = {name: self._ranks.get(name) or self._rank(name) for name in levels}
        counter("num_cpu_loaded_lora_adapters").value = len(levels)
        counter("num_gpu_loaded_lora_adapters").value = sum(
            level == "gpu" for level in levels.values()
        )
        for transition, times in (("load", memory.loads), ("activate", memory.activations)):
            histogram("lora_adapter_load_seconds", transition=transition).counts[0] = times
        help = "1 for an adapter in memory."
        loaded: Family[Gauge] = Family("vllm:lora_adapter_loaded", help, Gauge, kind="gauge")
        for name, level in levels.items():
            labels = {
                "adapter_name": name,
                "level": level,
                "pinned": "false",
                "rank": str(self._ranks[name]),
            }
            loaded.labels(**self._server, **labels).value = 1
        return loaded.render() + self._families.render()
