"""The queue of sequences that wait for a place in the engine."""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter
from typing import Generic, TypeVar

from app.core.engine.batch import AdapterKey, LoRASlots, SequenceState

FRONT_OF_QUEUE = -(1 << 128)
"""Offset of a sort key that sorts before all priorities."""
PRIORITY_FACTOR = 1 << 48
"""Factor of a priority in a sort key: exceeds any arrival number, so priority decides first."""
BAND = 1 << 80
"""Offset of a sort key that sorts before all preempted sequences, and after urgent ones."""
MAX_STALE = 64
"""Maximum stale entries in the queues, beyond the number of waiting sequences, before a cleanup."""

W = TypeVar("W", bound=SequenceState)


class WaitingQueue(Generic[W]):
    """Waiting sequences: first come, first served, or by priority.

    A sequence whose adapter cannot be loaded now does not block others. A sequence that leaves the
    queue for a slot keeps its adapter in memory until `left`.
    """

    def __init__(
        self,
        lora: LoRASlots | None = None,
        by_priority: bool = False,
        prefers_resident: bool = False,
    ) -> None:
        """Without `lora` no sequence has an adapter.

        With `prefers_resident` a sequence whose adapter must be loaded waits until all others have
        left, as in llm-d-inference-sim.
        """
        self.lora = LoRASlots(0, _no_number) if lora is None else lora
        self.by_priority = by_priority
        self._prefers_resident = prefers_resident
        self._queues: dict[AdapterKey | None, deque[tuple[int, W]]] = {}
        """Per adapter its queue of (sort key, sequence), in order of priority and arrival."""
        self._entries = 0
        """Number of entries in all queues, including those of removed sequences."""
        self.members: set[W] = set()
        self.adapters: dict[W, AdapterKey] = {}
        """Adapters held by running sequences; an adapter may be unloaded while held."""
        self._arrivals = 0
        self._preemptions = 0
        self._passed: list[tuple[int, W]] = []
        """Members that are passed over in the step being made, with their sort keys."""
        self._reach = 0
        """Sort key before which older versions have passed over all that wait; 0: no such rule."""
        self._popped_key = 0
        """Sort key of the sequence that `pop` removed last."""

    def is_ready(self, adapter: str | None) -> bool:
        """Returns whether a sequence with `adapter` can run now."""
        if adapter is None:
            return True
        return self.lora.is_ready(self.lora.key(adapter)) or self.lora.has_room()

    def add(self, sequence: W, first: bool = False) -> None:
        """Queues a sequence, a former member at its old place.

        With `first` it goes before all others, which hold no blocks. Without priorities, these are
        in the order of their `place`, which the scheduler gave them with their blocks.
        """
        if not sequence.arrived:
            self._arrivals += 1
            sequence.arrived = self._arrivals
            if sequence.adapter is not None:
                sequence.lora = self.lora.key(sequence.adapter)
        sort_key = sequence.arrived
        if self.by_priority:
            sort_key += sequence.priority * PRIORITY_FACTOR
        elif first:
            sort_key = sequence.place
        if first:
            sort_key += FRONT_OF_QUEUE
        self._insert(sequence, sort_key)

    def add_preempted(self, sequence: W) -> None:
        """Queues a former member that lost its blocks.

        It goes before all others that hold no blocks, or to its old place by priority.
        """
        if self.by_priority:
            self.add(sequence)
            return
        # Up to 0.30, vLLM keeps sequences that a step has passed over in a queue of their own, and
        # puts preempted ones into the other queue, behind them.
        if self._reach:
            for adapter, queue in self._queues.items():
                self._queues[adapter] = deque(
                    (key - BAND if key < self._reach else key, other) for key, other in queue
                )
            self._reach -= BAND
            self._popped_key -= BAND
        self._preemptions += 1
        self._insert(sequence, -self._preemptions)

    def _insert(self, sequence: W, sort_key: int) -> None:
        self.members.add(sequence)
        self._entries += 1
        queue = self._queues.get(sequence.lora)
        if queue is None:
            queue = self._queues[sequence.lora] = deque()
        # A search in the middle of a deque takes time in proportion to its length.
        if not queue or sort_key > queue[-1][0]:  # as nearly always
            queue.append((sort_key, sequence))
        elif sort_key < queue[0][0]:
            queue.appendleft((sort_key, sequence))
        else:
            insort(queue, (sort_key, sequence))

    def sort(self, by_priority: bool) -> None:
        """Sorts the waiting sequences by another policy; those at the front stay there."""
        if by_priority == self.by_priority:
            return
        self.by_priority = by_priority
        urgent = set()
        for queue in self._queues.values():
            for sort_key, sequence in queue:
                if sort_key < FRONT_OF_QUEUE // 2:
                    urgent.add(sequence)
        self._queues = {}
        self._entries = 0
        for sequence in sorted(self.members, key=attrgetter("arrived")):
            self.add(sequence, sequence in urgent)

    def remove(self, sequence: W) -> bool:
        """Removes a sequence; returns False if the sequence is not waiting."""
        if sequence not in self.members:
            return False
        self.members.remove(sequence)
        self._drop_stale()
        return True

    def head(self) -> W | None:
        """Returns the next sequence; None if none may start."""
        members = self.members
        if not members:
            return None
        if len(self._queues) == 1:  # as nearly always
            queue = self._queues.get(None)
            if queue:
                if queue[0][1] not in members:
                    queue = self._live(None)
                if queue:
                    return queue[0][1]
        heads = []
        for adapter in list(self._queues):
            queue = self._live(adapter)
            if queue:
                heads.append(queue[0])
        allowed = self._allowed(heads)
        return min(allowed)[1] if allowed else None

    def _allowed(self, heads: list[tuple[int, W]]) -> list[tuple[int, W]]:
        """Returns those of `heads` that may start next."""
        has_room = self.lora.has_room()
        if has_room and not self._prefers_resident:
            return heads
        ready = []
        for head in heads:
            sort_key, sequence = head
            is_urgent = has_room and sort_key < FRONT_OF_QUEUE // 2
            if self.lora.is_ready(sequence.lora) or is_urgent:
                ready.append(head)
        if has_room and not ready:
            return heads
        return ready

    def before(self, head: W | None) -> list[W]:
        """Returns the sequences that wait before `head`; all sequences if it is None."""
        if head is None:
            return list(self.members)
        sort_key, _ = self._queues[head.lora][0]
        return self._before_key(sort_key)

    def before_popped(self) -> list[W]:
        """Returns the sequences that wait before the place of the latest `pop`."""
        return self._before_key(self._popped_key)

    def _before_key(self, end: int) -> list[W]:
        return [
            sequence
            for queue in self._queues.values()
            for sort_key, sequence in queue
            if sort_key < end and sequence in self.members
        ]

    def pop(self, sequence: W) -> None:
        """Removes the `head`, which has a slot now."""
        self._popped_key, _ = self._queues[sequence.lora].popleft()
        self._entries -= 1
        self.members.remove(sequence)
        if self._entries > MAX_STALE:
            self._drop_stale()
        if sequence.lora is not None:
            self.hold(sequence)

    def pass_over(self, sequence: W) -> None:
        """Lets the others overtake the `head` until `end_passes`."""
        sort_key, _ = self._queues[sequence.lora].popleft()
        self._passed.append((sort_key, sequence))
        self._entries -= 1

    def end_passes(self) -> bool:
        """Puts the sequences that were passed over back; returns whether there were any."""
        passed = self._passed
        self._passed = []
        for sort_key, sequence in reversed(passed):
            self._insert(sequence, sort_key)
        return bool(passed)

    def note_pass(self, runs_out: bool) -> None:
        """Notes which sequences a step passed over; with `runs_out`, those before the last `pop`.

        See `SchedulerRules.forgets_passes`.
        """
        end = self._popped_key
        if not runs_out:
            head = self.head()
            end = self._queues[head.lora][0][0] if head else self._arrivals + 1
        self._reach = max(self._reach or end, end)

    def hold(self, sequence: W) -> None:
        """Keeps in memory the adapter of a sequence that got a slot."""
        if not sequence.arrived:
            sequence.lora = self.lora.key(sequence.adapter)
        if sequence.lora is not None:
            self.lora.enter(sequence.lora)
            self.adapters[sequence] = sequence.lora

    def left(self, sequence: W) -> None:
        """Releases the adapter of a sequence that has given back its slot."""
        if self.adapters:
            key = self.adapters.pop(sequence, None)
            if key is not None:
                self.lora.leave(key)

    def _drop_stale(self) -> None:
        """Drops stale entries before they outnumber the waiting sequences."""
        if self._entries <= 2 * len(self.members) + MAX_STALE:
            return
        for adapter, queue in self._queues.items():
            self._queues[adapter] = deque(entry for entry in queue if entry[1] in self.members)
        self._entries = sum(map(len, self._queues.values()))

    def _live(self, adapter: AdapterKey | None) -> deque[tuple[int, W]]:
        """Returns the queue of an adapter, without stale entries at its front."""
        queue = self._queues[adapter]
        while queue and queue[0][1] not in self.members:
            queue.popleft()
            self._entries -= 1
        if not queue:
            del self._queues[adapter]
        return queue


def _no_number(adapter: str) -> int:
    return 0
