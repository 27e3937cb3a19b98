"""Messages for the page: a whole picture once, then a frame of changes four times a second.

Both are JSON; frequent rows have positions instead of names. Times are milliseconds of the server's clock
since the picture's `began`. A bar is one choice of one request, named by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.json import Encoder

FIGURES = (
    "running", "waiting", "cache_usage", "preemptions", "generated", "prompt", "cached", "queries", "hits",
    "stop", "length", "abort", "error", "repetition",
)  # fmt: skip
"""Names of the numbers in `Frame.figures`; a finish reason names a count of requests."""

NewBar = tuple[int, str, int, int, int, float, str | None, str, int]
"""Number, request id, choice, prompt tokens, max_tokens, arrival, adapter, path, n."""
PhaseRow = tuple[int, int, float, int]
"""Number, phase, its start, preemptions."""
EndRow = tuple[int, str, float, int, int, float | None, float | None, float | None]
"""Number, finish reason, end, tokens, cached tokens; times of the first schedule, first and last token."""
StepRow = tuple[float, float, int, int, int]
"""Start, duration, prefill tokens, decode tokens, sequences."""
EventRow = tuple[str, int, int, int, str, str]
"""Kind, message number, blocks, tokens, hash of the first block, adapter."""


class Frame(Struct, kw_only=True, omit_defaults=True):
    """Changes since the last frame."""

    at: float
    state: str = "serving"
    figures: list[float] = []
    new: list[NewBar] = []
    phases: list[PhaseRow] = []
    tokens: list[int] = []
    """Pairs, flat: number, output tokens."""
    computed: list[int] = []
    """Pairs, flat: number, computed prompt tokens."""
    chunks: list[float] = []
    """Pairs, flat: number, time at which a prefill chunk that was not the last one ended."""
    held: list[int] = []
    """Pairs, flat: number, KV blocks."""
    ended: list[EndRow] = []
    steps: list[StepRow] = []
    blocks: list[int] = []
    """Triples, flat: block, state (see `app.console.bars`), bar that took the block last."""
    firsts: list[int] = []
    """Pairs, flat: bar, its first block. Bars with the same first block share a prefix."""
    evicted: list[int] = []
    events: list[EventRow] = []
    ttft: list[int] = []
    """Counts of all buckets, when one has changed."""
    itl: list[int] = []
    adapters: dict[str, int] | None = None
    """Running requests by adapter, for adapters in memory."""
    load: Mapping[str, object] | None = None
    """State of the load generator."""


class Picture(Struct, kw_only=True):
    """Everything that a new page needs; frames continue from here."""

    version: int = 1
    began: float
    """Moment 0 in Unix seconds."""
    server: Mapping[str, object]
    """Constants of the server: model, limits, ranks."""
    names: Sequence[str] = FIGURES
    ttft_bounds: Sequence[float]
    itl_bounds: Sequence[float]
    frame: Frame
    """The whole state, as one frame."""


_encode = Encoder().encode


def event_of(kind: str, item: Frame | Picture) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode(item) + b"\n\n"
