"""Which LoRA adapters are in memory, and how many requests run with each (simulator.md 10.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator


class LoRASlots:
    """At most `most` adapters at a time; an idle one makes room for another, the longest idle first.

    `known` says whether an adapter is (still) loaded; one that is not counts as the base model. Their names
    are those of the registry, which bounds them.
    """

    def __init__(self, most: int, known: Callable[[str], bool]) -> None:
        self.most = most
        self._known = known
        self._running: dict[str, int] = {}
        """Requests that run with each resident adapter; the one that became idle last stands last."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._running)

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
        return True

    def leave(self, adapter: str) -> None:
        """A request that `enter` counted is over."""
        running = self._running.pop(adapter) - 1
        if running or self._known(adapter):
            self._running[adapter] = running
