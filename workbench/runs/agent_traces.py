"""Agent traces in the format of Weka's KV cache tester, which AgentX replays.

A trace is a JSON object with the requests of one conversation in order; a file has one trace or one
in each line. Requests have block hashes, which are local to their trace. A subagent begins after
the latest request of its parent, and the parent's next request waits for it, unless the subagent
was launched in the background.
"""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from config import ConfigError
from config.untrusted import decode_untrusted
from workbench.load.loads import MAX_LOAD_S, MAX_TOKENS, NO_GROUP, LoadTrace

BACKGROUND = "async_launched"
"""Status of a subagent for which the parent does not wait."""
TOLERANCE_S = 1e-6

Tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
Moment = Annotated[float, Meta(ge=0, le=MAX_LOAD_S)]


class _Call(Struct):
    """A request to the model."""

    t: Moment
    """Seconds since the conversation began."""
    input_tokens: Tokens = msgspec.field(name="in")
    output_tokens: Tokens = msgspec.field(name="out")
    hash_ids: list[int] = []
    api_time: Moment | None = None
    think_time: Moment | None = None


class _NormalCall(_Call, tag_field="type", tag="n"):
    pass


class _StreamingCall(_Call, tag_field="type", tag="s"):
    pass


class _Subagent(Struct, tag_field="type", tag="subagent"):
    t: Moment
    requests: list[_NormalCall | _StreamingCall] = []
    status: str = ""


class _Trace(Struct):
    requests: list[_NormalCall | _StreamingCall | _Subagent]
    block_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 64
    id: str | int = ""
    hash_id_scope: Literal["local"] = "local"


def is_agent_trace(head: bytes) -> bool:
    """Returns whether a file with this beginning is an agent trace."""
    return head.startswith(b"{") and b'"requests"' in head and b'"block_size"' in head


def read_agent_traces(origin: str, documents: Iterable[tuple[int, bytes]]) -> LoadTrace:
    """Returns the requests of all traces of a file; each conversation begins at 0 s.

    `documents` are the traces, with the numbers of their lines.

    Raises:
        ConfigError: A trace is wrong.
    """
    load = LoadTrace(origin)
    reader = _Reader(load)
    for number, (_, text) in enumerate(documents, 1):
        try:
            trace = decode_untrusted(text, type=_Trace)
            reader.append(trace)
        except ValueError as error:
            raise ConfigError(f"{origin}, trace {number}: {error}") from None
    if not load:
        raise ConfigError(f"{origin} has no requests with tokens")
    return load


class _Reader:
    """Appends traces to a load, with one prefix tree for all traces."""

    def __init__(self, load: LoadTrace) -> None:
        self._load = load
        self._nodes: dict[tuple[int, int], int] = {}
        """Node of the tree by parent and hash."""
        self._chains = 0
        self._ends_s: dict[int, float] = {}
        """Recorded end of each request, by number."""

    def append(self, trace: _Trace) -> None:
        """Appends the requests of a conversation. Raises ValueError for other sizes of blocks."""
        load = self._load
        if load and trace.block_size != load.node_tokens:
            raise ValueError(
                f"block_size {trace.block_size} must be the same as in the first trace"
                f" ({load.node_tokens})"
            )
        load.node_tokens = trace.block_size
        self._nodes.clear()  # hashes are local to a trace
        load.conversation_starts.append(len(load))
        chain = self._new_chain()
        latest: list[int] = []
        """The parent's latest request."""
        joined: list[int] = []
        """Last requests of the subagents for which the parent waits."""
        for entry in trace.requests:
            if isinstance(entry, _Subagent):
                ends = self._append_subagent(entry, latest)
                if entry.status != BACKGROUND:
                    joined += ends
            elif entry.input_tokens and entry.output_tokens:
                latest = [self._append_call(entry, entry.t, chain, [*latest, *joined])]
                joined = []
            else:
                load.left_out += 1
        if len(load) == load.conversation_starts[-1]:
            load.conversation_starts.pop()

    def _append_subagent(self, entry: _Subagent, latest: list[int]) -> list[int]:
        """Appends the requests of a subagent; returns the last request of each branch.

        Requests that overlapped are sent in parallel.
        """
        calls = [call for call in entry.requests if call.input_tokens and call.output_tokens]
        self._load.left_out += len(entry.requests) - len(calls)
        calls.sort(key=_moment)
        offset_s = 0.0
        if calls and calls[0].t + TOLERANCE_S < entry.t:  # relative to the start of the subagent
            offset_s = entry.t
        chain = self._new_chain()
        open_ends: list[tuple[float, int]] = []
        """Heap of the ends of requests that no other one follows, with their numbers."""
        for call in calls:
            begin_s = call.t + offset_s
            finished: list[int] = []
            while open_ends and open_ends[0][0] <= begin_s + TOLERANCE_S:
                finished.append(heappop(open_ends)[1])
            number = self._append_call(call, begin_s, chain, sorted(finished) or latest)
            heappush(open_ends, (self._ends_s[number], number))
        return sorted(number for _, number in open_ends)

    def _append_call(self, call: _Call, begin_s: float, chain: int, predecessors: list[int]) -> int:
        load = self._load
        number = len(load)
        think_s = 0.0
        if call.think_time is not None:
            think_s = call.think_time
        elif predecessors:
            ended_s = max(self._ends_s[earlier] for earlier in predecessors)
            think_s = max(0.0, begin_s - ended_s)
        self._ends_s[number] = begin_s + (call.api_time or 0.0)
        if predecessors:
            load.predecessors[number] = tuple(predecessors)
        blocks = -(-call.input_tokens // load.node_tokens)
        node = NO_GROUP
        for block in call.hash_ids[:blocks]:
            parent = node
            node = self._nodes.setdefault((parent, block), len(load.parents))
            if node == len(load.parents):
                load.parents.append(parent)
        shared_tokens = load.node_tokens * min(blocks, len(call.hash_ids))
        load.group.append(node)
        load.prefix_tokens.append(min(call.input_tokens, shared_tokens))
        load.arrival_s.append(0.0)
        load.input_tokens.append(call.input_tokens)
        load.output_tokens.append(call.output_tokens)
        load.session.append(chain)
        load.think_s.append(think_s)
        return number

    def _new_chain(self) -> int:
        self._chains += 1
        return self._chains - 1


def _moment(call: _Call) -> float:
    return call.t


def limit_conversations(load: LoadTrace, places: int) -> None:
    """Lets at most `places` conversations run at a time.

    Each place plays every `places`-th conversation, one after another.
    """
    starts = load.conversation_starts
    ends = [*starts[1:], len(load)]
    followed = {earlier for numbers in load.predecessors.values() for earlier in numbers}
    for index in range(places, len(starts)):
        earlier_requests = range(starts[index - places], ends[index - places])
        last = tuple(number for number in earlier_requests if number not in followed)
        load.predecessors.setdefault(starts[index], last)
