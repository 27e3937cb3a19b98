"""Frames of changes and pictures of the whole state, which the server sends to the page.

The page gets one picture, and then a frame four times a second. Both are JSON; frequent rows have
positions instead of names. Times are milliseconds of the server's clock since the picture's
`began`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.json import Encoder

FIGURES = (
    "running",
    "waiting",
    "cache_usage",
    "preemptions",
    "generated",
    "prompt",
    "cached",
    "queries",
    "hits",
    "stop",
    "length",
    "abort",
    "error",
    "repetition",
    "refused",
)
"""Names of the numbers in `Frame.figures`; a finish reason names a count of requests.

`refused` counts requests that were answered with an error before their first choice.
"""

NewBar = tuple[int, str, int, int, int, float, str | None, str, int]
"""Number, request id, choice, prompt tokens, max_tokens, arrival, adapter, path, n."""
PhaseRow = tuple[int, int, float, int]
"""Number, phase, its start, preemptions."""
EndRow = tuple[int, str, float, int, int, float | None, float | None, float | None]
"""Number, finish reason, end, tokens, cached tokens; first scheduling, first token, last token."""
StepRow = tuple[float, float, int, int, int] | tuple[float, float, int, int, int, int]
"""Start, duration, prefill tokens, decode tokens, sequences; in a simulated fleet also the pod."""
PodRow = tuple[int, int, float, float, str]
"""Running and waiting requests, used share of the KV cache, cached share of prompts, state."""
PastRow = list[float | None]
"""Time, then `Frame.figures` of that time; None for a figure that is not kept."""
MarkRow = tuple[float, str, str]
"""Time, kind (`setting`, `fault`, `pause`, `load`, `scale`), description."""
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
    """Pairs, flat: number, end of a prefill chunk that was not the last of its prompt."""
    held: list[int] = []
    """Pairs, flat: number, KV blocks."""
    ended: list[EndRow] = []
    steps: list[StepRow] = []
    pods: list[PodRow] = []
    """Pods of a simulated fleet."""
    blocks: list[int] = []
    """Triples, flat: block, state (see `block_map`), number of the last bar that took the block."""
    firsts: list[int] = []
    """Pairs, flat: bar, its first block. Bars with the same first block share a prefix."""
    evicted: list[int] = []
    events: list[EventRow] = []
    ttft: list[int] = []
    """Pairs, flat: latency in tenths of a millisecond, number of first tokens with this latency.

    Requests that left without a first token count with the time that they had waited.
    """
    itl: list[int] = []
    """Pairs, flat: gap in tenths of a millisecond, number of tokens after such a gap."""
    marks: list[MarkRow] = []
    adapters: dict[str, int] | None = None
    """Running requests by adapter, for adapters in memory."""
    load: Mapping[str, object] | None = None
    """State of the load generator."""


class Picture(Struct, kw_only=True):
    """Everything that a new page needs; frames continue from here."""

    version: int = 2
    began: float | None
    """Start of all times in Unix seconds; None on virtual time."""
    server: Mapping[str, object]
    """Constants of the server: model, limits, ranks."""
    names: tuple[str, ...] = FIGURES
    ttft_bounds: Iterable[float]
    itl_bounds: Iterable[float]
    since: float = 0.0
    """`frame` has every request that ended at this time or later."""
    past: list[PastRow] = []
    """The time before, as far as it is kept."""
    frame: Frame
    """The whole state, as one frame."""


_encode = Encoder().encode


def encode_event(kind: str, item: Frame | Picture) -> bytes:
    """Returns a server-sent event of this kind."""
    return b"event: " + kind.encode() + b"\ndata: " + _encode(item) + b"\n\n"


def to_ms(seconds: float) -> float:
    """Returns milliseconds with one decimal digit."""
    return round(seconds * 10_000) / 10
