"""A load as columns: arrival times and token counts of requests."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
SESSION_COLUMNS = ("session", "think_s")
ROW_COLUMNS = (*COLUMNS, *SESSION_COLUMNS, "group", "prefix_tokens", "kind")
"""Fields of `LoadTrace` that are arrays with a value for each request."""
MAX_TOKENS = 1 << 30
MAX_LOAD_S = 10_000_000
"""Longest synthetic or autoscaled load, as an autoscaler looks at regular intervals."""
NO_GROUP = -1
ROWS_PER_PROGRESS = 1 << 14
"""Requests between two progress calls."""


def _ints() -> array[int]:
    return array("i")


def _floats() -> array[float]:
    return array("d")


@dataclass(slots=True)
class LoadTrace:
    """Requests in order of arrival, as columns for millions of rows.

    Columns of a feature that the load does not have are empty.
    """

    origin: str
    """Name of the source, with which error messages begin."""
    arrival_s: array[float] = field(default_factory=_floats)
    input_tokens: array[int] = field(default_factory=_ints)
    output_tokens: array[int] = field(default_factory=_ints)
    group: array[int] = field(default_factory=_ints)
    """Group of each request whose prompts share a prefix; NO_GROUP for none."""
    prefix_tokens: array[int] = field(default_factory=_ints)
    parents: array[int] = field(default_factory=_ints)
    """Parent of each group in a prefix tree, NO_GROUP for a root. Empty for groups without a tree.
    """
    node_tokens: int = MAX_TOKENS
    """Tokens of the prompt that belong to each node of the tree."""
    session: array[int] = field(default_factory=_ints)
    """Conversation of each request, whose turns are in order; NO_GROUP for none."""
    think_s: array[float] = field(default_factory=_floats)
    """Time from an answer until the next turn. The `arrival_s` of a later turn is that of the row
    above.
    """
    predecessors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Requests whose answers must end before a request is sent, `think_s` later: the turns of
    agents, which wait for subagents. Empty for sessions whose turns are a single chain.
    """
    conversation_starts: list[int] = field(default_factory=list)
    """First request of each conversation of agents."""
    images: list[tuple[int, ...]] = field(default_factory=list)
    """Tokens of each image of each prompt."""
    kind: array[int] = field(default_factory=_ints)
    """Index of each request's class in `classes`."""
    classes: list[str] = field(default_factory=list)
    left_out: int = 0
    """Rows of a public trace without prompt or answer tokens: requests that failed."""
    rows: str = "request"
    """Word for a row, in error messages."""
    first_row: int = 1
    """Number of the first row, in error messages."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def row(self, number: int) -> str:
        """Returns the name of a row for error messages."""
        return f"{self.origin}, {self.rows} {number + self.first_row}"

    def path(self, number: int) -> list[int]:
        """Returns the groups from the root of the prefix tree to that of the request.

        Without a tree it is only the group of the request.
        """
        path = []
        node = self.group[number]
        while node != NO_GROUP:
            path.append(node)
            node = self.parents[node] if self.parents else NO_GROUP
        return path[::-1]

    def rows_of(self, numbers: Sequence[int]) -> LoadTrace:
        """Returns a load of some of the requests, which must not wait for each other."""
        part = replace(self, images=[self.images[number] for number in numbers if self.images])
        for name in ROW_COLUMNS:
            column: array[float] = getattr(self, name)
            rows = map(column.__getitem__, numbers) if column else ()
            setattr(part, name, array(column.typecode, rows))
        return part

    def next_turns(self) -> dict[int, int]:
        """Returns the later turns of sessions: number of a request -> number of the next turn."""
        latest_turn: dict[int, int] = {}
        next_turns = {}
        for number, session in enumerate(self.session):
            if session != NO_GROUP:
                if session in latest_turn:
                    next_turns[latest_turn[session]] = number
                latest_turn[session] = number
        return next_turns

    def followers(self) -> dict[int, list[int]]:
        """Returns the requests that wait for the answer of a request, by its number."""
        followers: dict[int, list[int]] = {}
        if self.predecessors:
            for number, earlier_requests in self.predecessors.items():
                for earlier in earlier_requests:
                    followers.setdefault(earlier, []).append(number)
            return followers
        if self.conversation_starts:
            return followers
        for earlier, number in self.next_turns().items():
            followers[earlier] = [number]
        return followers
