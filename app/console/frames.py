"""What the page is told: a whole picture once, then what has changed, four times a second.

Both are JSON with positions instead of names where there are many. Moments are milliseconds since the
picture's `began`, of the server's clock. A bar is one choice of one request, named by its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import Encoder

FIGURES = (
    "running", "waiting", "cache_usage", "preemptions", "generated", "prompt", "cached", "queries", "hits",
    "stop", "length", "abort", "error", "repetition",
)  # fmt: skip
"""The names of the numbers in `Frame.figures`; the reasons of ends count requests."""

NewBar = tuple[int, str, int, int, int, float, str | None, str, int]
"""Number, request id, choice, tokens of the prompt, most tokens of the reply, arrival, adapter, path, n."""
PhaseRow = tuple[int, int, float, int]
"""Number, phase, since when, preemptions."""
EndRow = tuple[int, str, float, int, int, float | None, float | None, float | None]
"""Number, reason, end, tokens, cached tokens; when it ran, had its first and its last token."""
StepRow = tuple[float, float, int, int, int]
"""Begin, duration, tokens of prompts, tokens of decodes, sequences."""
EventRow = tuple[str, int, int, int, str, str]
"""Kind, number of the message, blocks, tokens, hash of the first block, adapter."""


class Frame(Struct, kw_only=True, omit_defaults=True):
    """Changes since the frame before, and nothing else."""

    at: float
    state: str = "serving"
    figures: list[float] = []
    new: list[NewBar] = []
    phases: list[PhaseRow] = []
    tokens: list[int] = []
    """Number and tokens of the reply, in turns."""
    computed: list[int] = []
    """Number and computed tokens of the prompt, in turns."""
    chunks: list[float] = []
    """Number, and when a chunk of its prompt was computed that was not the last one, in turns."""
    held: list[int] = []
    """Number and KV blocks, in turns."""
    ended: list[EndRow] = []
    unseen: int = 0
    """Requests for which there was no room in this frame."""
    steps: list[StepRow] = []
    blocks: list[int] = []
    """Number of a block, its state (see `app.console.blocks`) and the bar that took it last, in threes."""
    firsts: list[int] = []
    """Bars that have got their first block, and its number, in turns: who shares it shares a prefix."""
    evicted: list[int] = []
    events: list[EventRow] = []
    ttft: list[int] = []
    """Counts of the buckets, all of them, when one has changed."""
    itl: list[int] = []
    adapters: dict[str, int] | None = None
    """Requests that run with each adapter in memory."""
    load: dict[str, Any] | None = None
    """The load generator: what it does, or did."""


class Picture(Struct, kw_only=True):
    """Everything that a page needs to begin with; the frames go on from here."""

    version: int = 1
    began: float
    """Unix seconds of moment 0."""
    server: dict[str, Any]
    """Constants of the server: model, limits, ranks."""
    names: Sequence[str] = FIGURES
    ttft_bounds: Sequence[float]
    itl_bounds: Sequence[float]
    frame: Frame
    """The whole state, as one frame."""


_encode = Encoder().encode


def event_of(kind: str, item: Frame | Picture) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode(item) + b"\n\n"
