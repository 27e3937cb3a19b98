"""Builds the load of a public trace, whose rows may be out of order: `TraceBuilder`."""

from array import array
from collections.abc import Hashable, Iterable
from itertools import pairwise

from msgspec import Struct

from workbench.load.loads import NO_GROUP, LoadTrace
from workbench.runs.row_values import has_failed, read_tokens

BLOCK_TOKENS = 512
"""Tokens of a block in Mooncake's traces."""
OVERLAP_S = 1e-3
"""A turn may begin this much before the recorded end of the turn before: clocks are coarse."""


class TraceRow(Struct):
    """A request; times in seconds."""

    arrival_s: float
    input_tokens: object
    output_tokens: object
    block_ids: Iterable[Hashable] = ()
    """Ids of the blocks of the prompt, as far as they are known."""
    conversation: str = ""
    end_s: float | None = None
    """End of the answer, which the next turn of a conversation waits for."""


class TraceBuilder:
    """Appends rows to a load, with one prefix tree."""

    def __init__(self, load: LoadTrace, block_tokens: int | None = None) -> None:
        """`block_tokens` is the size of a block, if it is known."""
        self._load = load
        self._block_tokens = block_tokens
        self._nodes: dict[tuple[int, Hashable], int] = {}
        """Node of the tree by parent and id: an id may stand for a block, or for all up to it."""
        self._block_counts = array("i")
        self._ends_s = array("d")
        self._conversations: list[str] = []

    def add(self, row: TraceRow, names: tuple[str, str]) -> None:
        """Adds a request; `names` name its numbers of tokens.

        A row without tokens counts as left out. Raises ValueError with the rule that a row breaks.
        """
        load = self._load
        if has_failed(row.input_tokens) or has_failed(row.output_tokens):
            load.left_out += 1
            return
        input_tokens = read_tokens(names[0], row.input_tokens)
        output_tokens = read_tokens(names[1], row.output_tokens)
        node = NO_GROUP
        count = 0
        for block in row.block_ids:
            parent = node
            node = self._nodes.setdefault((parent, block), len(self._nodes))
            if node == len(load.parents):
                load.parents.append(parent)
            count += 1
        load.group.append(node)
        self._block_counts.append(count)
        load.arrival_s.append(row.arrival_s)
        load.input_tokens.append(input_tokens)
        load.output_tokens.append(output_tokens)
        self._conversations.append(row.conversation)
        self._ends_s.append(row.arrival_s if row.end_s is None else row.end_s)

    def finish(self) -> None:
        """Completes the load: blocks, order, conversations.

        Raises ValueError if the blocks do not fit the lengths of prompts.
        """
        load = self._load
        if any(self._block_counts):
            self._set_blocks()
        else:
            load.group = array("i")
        self._set_conversations()
        start_at_zero(load)

    def _set_blocks(self) -> None:
        load = self._load
        block_tokens = self._block_tokens or self._fitting_size()
        for number, (tokens, count) in enumerate(
            zip(load.input_tokens, self._block_counts, strict=True)
        ):
            max_count = -(-tokens // block_tokens)
            if count > max_count:
                raise ValueError(
                    f"request {number + 1}: got {count} block hashes, but {tokens} tokens have at"
                    f" most {max_count} blocks of {block_tokens} tokens; set --trace-block-size"
                )
            load.prefix_tokens.append(min(tokens, block_tokens * count))
        load.node_tokens = block_tokens

    def _fitting_size(self) -> int:
        """Returns the size of blocks that fits all prompts: Mooncake's, else a power of two.

        A prompt of n tokens in blocks of b has ceil(n / b) blocks.
        """
        min_size = 1
        max_size = 1 << 30
        for tokens, count in zip(self._load.input_tokens, self._block_counts, strict=True):
            if count:
                min_size = max(min_size, -(-tokens // count))
            if count > 1:
                max_size = min(max_size, -(-tokens // (count - 1)) - 1)
        if min_size <= BLOCK_TOKENS <= max_size:
            return BLOCK_TOKENS
        size = 1 << (min_size - 1).bit_length()
        if size <= max_size:
            return size
        return BLOCK_TOKENS

    def _set_conversations(self) -> None:
        """Lets a turn wait for the turn before, if it was sent after it and repeats its tokens."""
        load = self._load
        if not any(self._conversations):
            return
        order = sorted(range(len(load)), key=load.arrival_s.__getitem__)
        sessions = array("i", [NO_GROUP]) * len(load)
        think_s = array("d", [0.0]) * len(load)
        latest: dict[str, int] = {}
        count = 0
        for number in order:
            earlier = latest.get(self._conversations[number])
            if self._conversations[number]:
                latest[self._conversations[number]] = number
            if earlier is not None and self._continues(number, earlier):
                if sessions[earlier] == NO_GROUP:
                    sessions[earlier] = count
                    count += 1
                sessions[number] = sessions[earlier]
                think_s[number] = max(0.0, load.arrival_s[number] - self._ends_s[earlier])
        if count:
            load.session = sessions
            load.think_s = think_s

    def _continues(self, number: int, earlier: int) -> bool:
        load = self._load
        history = load.input_tokens[earlier] + load.output_tokens[earlier]
        is_later = load.arrival_s[number] >= self._ends_s[earlier] - OVERLAP_S
        return is_later and load.input_tokens[number] >= history


def start_at_zero(load: LoadTrace) -> None:
    """Sorts the requests of a public trace, and moves the first one to 0 s."""
    load.rows = "request"
    load.first_row = 1
    columns = ("arrival_s", "input_tokens", "output_tokens", "group", "prefix_tokens")
    if any(earlier_s > later_s for earlier_s, later_s in pairwise(load.arrival_s)):
        order = sorted(range(len(load)), key=load.arrival_s.__getitem__)
        for name in (*columns, "session", "think_s"):
            column = getattr(load, name)
            if column:
                setattr(load, name, array(column.typecode, map(column.__getitem__, order)))
    if load:
        first_s = load.arrival_s[0]
        load.arrival_s = array("d", (round(time_s - first_s, 6) for time_s in load.arrival_s))
