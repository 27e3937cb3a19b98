"""Where adapters are: in CPU memory, the latest used of them on the GPU, as vLLM's workers keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from app.lora.adapters import LoRARegistry

Level = Literal["cpu", "gpu"]


class AdapterMemory:
    """Keeps `most_cpu` adapters in CPU memory and `most_gpu` of these on the GPU, the latest used ones.

    An adapter is loaded when the registry gets it, and again when a request wants it that has lost its place.
    A running adapter loses no place to another, unless all are running.
    """

    def __init__(self, registry: LoRARegistry, most_gpu: int, most_cpu: int) -> None:
        self.most_gpu, self.most_cpu = most_gpu, most_cpu
        self.loads = self.activations = 0
        """Transitions so far: from the path to CPU memory, and from there to the GPU."""
        self._cpu: dict[str, None] = {}
        self._gpu: dict[str, None] = {}
        """The least recently used one first."""
        self._running: Counter[str] = Counter()
        for adapter in registry:
            self.load(adapter.name)
        registry.watch(self.load, self.drop)

    def __iter__(self) -> Iterator[tuple[str, Level]]:
        """Each adapter with the best level that it is in."""
        return ((name, "gpu" if name in self._gpu else "cpu") for name in self._cpu)

    def load(self, name: str) -> None:
        """Read the adapter from its path, also in the place of an older copy."""
        self.drop(name)
        self._use(name)

    def drop(self, name: str) -> None:
        """Forget the adapter."""
        self._cpu.pop(name, None)
        self._gpu.pop(name, None)

    def enter(self, name: str) -> None:
        """A request begins to run with the adapter."""
        self._running[name] += 1
        self._use(name)

    def leave(self, name: str) -> None:
        """Such a request is over."""
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]
        if name in self._gpu:
            self._use(name)

    def _use(self, name: str) -> None:
        """Bring the adapter to the GPU, by way of CPU memory, and make it the latest used one."""
        if name not in self._cpu:
            self.loads += 1
            while len(self._cpu) >= self.most_cpu:
                self.drop(self._oldest(self._cpu))
        if name not in self._gpu:
            self.activations += 1
            while len(self._gpu) >= self.most_gpu:
                del self._gpu[self._oldest(self._gpu)]
        self.drop(name)
        self._cpu[name] = self._gpu[name] = None

    def _oldest(self, names: dict[str, None]) -> str:
        return next((name for name in names if name not in self._running), next(iter(names)))
