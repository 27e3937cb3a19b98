"""Steps that encode images and other items of prompts. Start with `EncoderBudget`.

A step that computes tokens of an item encodes the item, unless the encoder cache has it. A budget
limits the embeddings of a step. A prompt is cut before the first item that does not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

from msgspec import Struct

from app.core.engine.batch import Batch, S, SchedulerLimits
from app.core.engine.scheduling_policy import Admission, SchedulingPolicy
from app.shared.step_policies.encoder_cache import EncoderCache


class EncoderLimits(Struct, frozen=True, kw_only=True):
    """vLLM's options of encoders."""

    budget: int
    """Maximum embeddings that a step computes."""
    cache_size: int
    """Embeddings that the encoder cache has room for."""
    overlaps_steps: bool = True
    """A step is made before the tokens of the step before it are known."""
    disable_chunked_mm_input: bool = False
    """An item whose tokens do not all fit into a step waits for the next step."""


class EncoderSeconds(Struct, frozen=True):
    """Costs of the encoder, in seconds; the default takes no time."""

    step: float = 0.0
    """Least time of a step with items."""
    embedding: float = 0.0
    """For each embedding."""
    embedding_pair: float = 0.0
    """For each pair of embeddings of an item."""

    def of(self, sizes: Sequence[int]) -> float:
        """Returns the seconds of encoding items of so many embeddings in one step."""
        if not sizes:
            return 0.0
        pairs = sum([size * size for size in sizes])
        return max(self.step, self.embedding * sum(sizes) + self.embedding_pair * pairs)


class EncoderItem(Struct, frozen=True, gc=False):
    """An item in a prompt: `length` tokens from `start` on."""

    name: str
    """Hash: equal items are encoded once."""
    start: int
    length: int

    @property
    def end(self) -> int:
        """Number of the first token behind the item."""
        return self.start + self.length


ItemsOf: TypeAlias = Callable[[S], Sequence[EncoderItem]]
"""Returns the items in the prompt of a sequence."""


class Encoding(Struct):
    """Items that a step encodes for a sequence, if the sequence gets its blocks."""

    new: list[int]
    """Numbers of the items that the step encodes."""
    repeated: list[int]
    """Numbers of items that equal one of these."""
    cost: int
    """Embeddings of the new items."""


class EncoderBudget(SchedulingPolicy[S]):
    """Cuts prompts before items that a step cannot encode."""

    def __init__(
        self,
        encoder: EncoderLimits,
        limits: SchedulerLimits,
        items_of: ItemsOf[S],
        seconds: EncoderSeconds,
    ) -> None:
        rules = limits.rules
        self._seconds = seconds
        self.encoded: dict[S, list[int]] = {}
        """Numbers of the items that the step being made encodes, by sequence."""
        self._limits = encoder
        self._max_size = min(encoder.budget, encoder.cache_size)
        """Embeddings of an item: a larger one would wait forever."""
        self._rules = rules
        self._items_of = items_of
        self._cache: EncoderCache[S] = EncoderCache(
            encoder.cache_size, keeps_repeated_items=rules.keeps_repeated_items
        )
        self._items: dict[S, Sequence[EncoderItem]] = {}
        """Items of sequences that have not left, in order; empty for a prompt without items."""
        self._budget = 0
        """Embeddings that the step being made may still compute."""
        self._planned: tuple[S, Encoding] | None = None
        """Items of the latest sequence, until it has its blocks."""
        self._computing: list[tuple[S, int]] = []
        """Prompts with items that the step being made computes tokens of, each with its tokens."""
        self._under_way: deque[list[tuple[S, int]]] = deque()
        """The same for each step under way."""
        self._late: list[S] = []
        """Sequences that hold an item until they have decoded a token."""

    def begin_step(self) -> None:
        """Renews the budget."""
        self._budget = self._limits.budget
        self._planned = None
        self.encoded.clear()
        self.visits_step = any(
            [self._has_next(prompt, prompt.computed) for prompt in self.scheduler.prefilling]
        )

    def wanted(self, sequence: S, tokens: int, limit: int) -> int:
        """Cuts a running prompt."""
        computed = sequence.computed
        if sequence.decodes or tokens <= 0 or not self._has_next(sequence, computed):
            return tokens
        return self._plan(sequence, computed, tokens)

    def grown(self, sequence: S, slots: int) -> None:
        """Encodes the items of a running prompt."""
        self._encode(sequence)

    def fits(self, admission: Admission[S], batch: Batch[S]) -> bool:
        """Cuts a waiting prompt, which may have to wait for room in the encoder cache."""
        sequence = admission.sequence
        if self._has_next(sequence, sequence.computed):
            admission.tokens = self._plan(sequence, sequence.computed, admission.tokens)
        admission.lets_pass = self._rules.passes_waiting_items
        return admission.tokens > 0

    def lacks_room(self, sequence: S, limit: int) -> bool:
        """Makes room for the items of a prompt, as vLLM does before it looks for free blocks."""
        if sequence.remote and not sequence.held:
            return False
        computed = sequence.computed
        if not sequence.held:
            computed = len(sequence.hits) * self.scheduler.blocks.block_size + sequence.loaded
        tokens = sequence.prompt_tokens + sequence.written - computed
        if tokens > limit and not self.scheduler.limits.enable_chunked_prefill:
            return False
        if not self._has_next(sequence, computed):
            return False
        tokens = self._plan(sequence, computed, min(tokens, limit))
        self._planned = None
        if not tokens:
            return self._rules.passes_waiting_items
        self._cache.release_all(sequence)
        return False

    def started(self, admission: Admission[S], batch: Batch[S]) -> None:
        """Encodes the items of a prompt."""
        self._encode(admission.sequence)

    def prefill(self, sequence: S, tokens: int) -> None:
        """Notes that the step being made computes a part of a prompt."""
        if self._items_in(sequence):
            total = sequence.prompt_tokens + sequence.written
            self._computing.append((sequence, total))

    def end_step(self, batch: Batch[S], *, has_preempted: bool, runs_out: bool) -> None:
        """Sets the time of the encoder, and notes what the end of the step releases."""
        if self.encoded:
            batch.encoder_s = self._seconds.of(
                [
                    self._items[sequence][number].length
                    for sequence, numbers in self.encoded.items()
                    for number in numbers
                ]
            )
        if batch.tokens:
            self._under_way.append(self._computing)
            self._computing = []

    def complete_step(self, batch: Batch[S]) -> None:
        """Releases the items whose tokens are computed.

        Where steps overlap, vLLM does not count the last token of a prompt before the next token
        is computed, too.
        """
        for sequence in [sequence for sequence in self._late if sequence in batch.decodes]:
            self._late.remove(sequence)
            self._cache.release_all(sequence)
        for sequence, total in self._under_way.popleft():
            held = self._cache.held(sequence)
            if not held:
                continue
            computed = sequence.computed
            if self._limits.overlaps_steps and (sequence.decodes or sequence.last):
                computed = total - 1
            items = self._items[sequence]
            for number in held:
                if items[number].end <= computed:
                    self._cache.release(sequence, number)
            if sequence in batch.prefilled and self._cache.held(sequence):
                self._late.append(sequence)

    def preempt(self, sequence: S) -> None:
        """Releases the items of a prompt, which the step no longer encodes."""
        items = self._items_in(sequence)
        numbers = self.encoded.pop(sequence, ())
        self._budget += sum([self._size(items[number]) for number in numbers])
        self._release_all(sequence)

    def finish(self, sequence: S) -> None:
        """Releases the items of a sequence."""
        self._release_all(sequence)
        self._items.pop(sequence, None)

    def _release_all(self, sequence: S) -> None:
        self._cache.release_all(sequence)
        if sequence in self._late:
            self._late.remove(sequence)

    def _items_in(self, sequence: S) -> Sequence[EncoderItem]:
        items = self._items.get(sequence)
        if items is None:
            items = sorted(self._items_of(sequence), key=attrgetter("start"))
            self._items[sequence] = items
        return items

    def _has_next(self, sequence: S, computed: int) -> bool:
        """Returns whether items of a sequence reach beyond its first `computed` tokens."""
        items = self._items_in(sequence)
        return bool(items) and items[-1].end > computed

    def _size(self, item: EncoderItem) -> int:
        return min(item.length, self._max_size)

    def _plan(self, sequence: S, computed: int, tokens: int) -> int:
        """Chooses the items to encode for the next tokens of a prompt.

        Returns how many of the `tokens` after the first `computed` ones the step can compute.
        The sequence holds the items that the cache has, also if it computes nothing in this step.
        """
        end = computed + tokens
        encoding = Encoding([], [], 0)
        names: set[str] = set()
        for number, item in enumerate(self._items_in(sequence)):
            if item.end <= computed:
                continue
            if item.start >= end:
                break
            is_split = self._is_split(item, computed, end)
            if is_split and self._rules.avoids_known_splits:
                tokens = max(0, item.start - computed)
                break
            if item.name in names:
                encoding.repeated.append(number)
                continue
            if self._cache.hold(sequence, number, item.name):
                continue
            size = self._size(item)
            if is_split or not self._has_room(size, encoding.cost):
                tokens = max(0, item.start - computed)
                break
            names.add(item.name)
            encoding.new.append(number)
            encoding.cost += size
        self._planned = sequence, encoding
        return tokens

    def _is_split(self, item: EncoderItem, computed: int, end: int) -> bool:
        """Returns whether the tokens up to `end` would split an item that must not be split."""
        if not self._limits.disable_chunked_mm_input or end >= item.end:
            return False
        return computed < item.start or (computed == item.start and self._rules.splits_no_items)

    def _has_room(self, size: int, planned: int) -> bool:
        """Returns whether the step can encode an item besides others of the same prompt."""
        if size + planned > self._budget:
            return False
        return self._cache.make_room(size + planned)

    def _encode(self, sequence: S) -> None:
        """Encodes the planned items of a sequence, which has its blocks."""
        if self._planned is None or self._planned[0] is not sequence:
            return
        encoding = self._planned[1]
        self._planned = None
        if not encoding.new:
            return
        items = self._items_in(sequence)
        for number in encoding.new:
            item = items[number]
            self._cache.store(sequence, number, item.name, self._size(item))
        if self._rules.notes_repeated_items:
            for number in encoding.repeated:
                self._cache.hold(sequence, number, items[number].name)
        self.encoded[sequence] = encoding.new
        self._budget -= encoding.cost
