"""A workload that was measured by counters: windows of time, as the source of drawn loads.

`workload.yaml` of a study is such a file (docs/study.md). Metrics have no single requests, so
`ASSUMPTIONS` lists the additions of a draw.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from config import ConfigError
from config.yaml_file import parse_yaml
from workbench.load.loads import MAX_TOKENS, ROWS_PER_PROGRESS, LoadTrace
from workbench.load.progress import Progress, ignore_progress

WORKLOAD_FILE = "workload.yaml"
KEY = "understudy_workload"
"""First key of the file, which identifies the format."""
FORMAT = 1
MAX_WINDOWS = 20_000
MAX_STEPS = 100_000
MAX_DRAWN = 100_000_000
"""Most requests of a workload."""
MAX_MEAN = float(MAX_TOKENS)
BLOCK_TOKENS = 16
"""vLLM's default block, the unit of shared prefixes."""
ASSUMPTIONS = (
    "The lengths of prompts and answers are independent of each other.",
    "Requests arrive at random times within a step (a Poisson process with the measured count).",
    "All prompts of a bucket of lengths begin with one shared prefix. In each bucket, it gives the"
    " measured share of cached tokens.",
    "Lengths within a bucket follow a power law whose mean gives the measured mean.",
    "Lengths above the last bucket end at the next bound of the series 1, 2, 5, 10.",
    "Requests that were rejected, or that have not ended, are not part of the workload.",
)
"""Facts that metrics do not contain."""

Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
Bucket = tuple[Amount, Amount | None, Amount]
"""Lower bound, which is excluded, upper bound or None, and the number of values."""


class TokenLengths(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lengths of prompts or answers, in tokens."""

    mean: Annotated[float, Meta(ge=0, le=MAX_MEAN)]
    count: Amount
    """Requests with a length."""
    buckets: tuple[Bucket, ...] = ()
    """Only those that have values, in ascending order."""


class Window(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests of a span of time."""

    start: datetime
    end: datetime
    requests: Amount
    """Requests that ended: the difference of counters, corrected for resets."""
    rate_per_s: Annotated[float, Meta(ge=0, le=1e9)]
    """Requests that arrived, by seconds."""
    arrivals: Annotated[tuple[Amount, ...], Meta(min_length=1)]
    """Arrivals in each step: ended requests, plus the change of requests in flight."""
    input_tokens: TokenLengths
    output_tokens: TokenLengths
    cached_share: Share
    """Prompt tokens that were found in the prefix cache, as a share of all that were looked up."""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return (self.end - self.start).total_seconds()


class Workload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload over time."""

    understudy_workload: int
    """Version of the format."""
    model: str
    windows: Annotated[tuple[Window, ...], Meta(min_length=1, max_length=MAX_WINDOWS)]
    assumptions: tuple[str, ...] = ()
    """For readers only."""


def is_workload(head: bytes) -> bool:
    """Returns whether a file with this beginning is a workload."""
    return any(line.startswith(KEY.encode()) for line in head[:1024].splitlines())


def read_workload(path: Path) -> Workload:
    """Reads a workload.

    Raises:
        ConfigError: The file has a mistake, or its windows overlap.
    """
    try:
        workload = msgspec.convert(parse_yaml(str(path)), Workload)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {error}") from None
    if workload.understudy_workload != FORMAT:
        raise ConfigError(f"{path}: {KEY} must be {FORMAT}, got {workload.understudy_workload}")
    windows = workload.windows
    for number, window in enumerate(windows, 1):
        name = f"{path}, window {number}"
        if window.start.tzinfo is None or window.end.tzinfo is None:
            raise ConfigError(f"{name}: start and end must have a time zone, such as Z")
        if window.seconds <= 0:
            raise ConfigError(f"{name}: end must be later than start")
        if number > 1 and window.start < windows[number - 2].end:
            raise ConfigError(f"{name}: starts before the end of the window before")
        for lengths in (window.input_tokens, window.output_tokens):
            _check_buckets(lengths, name)
    if sum(len(window.arrivals) for window in windows) > MAX_STEPS:
        raise ConfigError(f"{path} has more than {MAX_STEPS:,} steps")
    if sum(sum(window.arrivals) for window in windows) > MAX_DRAWN:
        raise ConfigError(f"{path} has more than {MAX_DRAWN:,} requests")
    return workload


def _check_buckets(lengths: TokenLengths, name: str) -> None:
    last = 0.0
    for low, high, _ in lengths.buckets:
        if low < last or low > MAX_MEAN or (high is not None and not low < high <= MAX_MEAN):
            raise ConfigError(f"{name}: the bounds of buckets must ascend")
        last = MAX_MEAN if high is None else high


def draw_workload(
    workload: Workload,
    origin: str,
    *,
    seed: int = 1,
    max_tokens: int = MAX_TOKENS,
    progress: Progress = ignore_progress,
) -> LoadTrace:
    """Draws a load; equal seeds make equal loads.

    Each bucket gets the share of requests that its histogram has. Times start at 0 with the
    first window. Requests are cut to `max_tokens`, prompt and answer together.

    Raises:
        ConfigError: The workload has no requests.
    """
    load = LoadTrace(origin)
    rng = Random(f"{seed}/study")
    begin = workload.windows[0].start
    shares_prefixes = any(window.cached_share for window in workload.windows)
    for window in workload.windows:
        start_s = (window.start - begin).total_seconds()
        _draw_window(
            load,
            window,
            start_s=start_s,
            rng=rng,
            max_tokens=max_tokens,
            shares_prefixes=shares_prefixes,
        )
        if len(load) >= ROWS_PER_PROGRESS:
            progress(len(load))
    if not load:
        raise ConfigError(f"{origin} has no requests")
    return load


def _draw_window(
    load: LoadTrace,
    window: Window,
    *,
    start_s: float,
    rng: Random,
    max_tokens: int,
    shares_prefixes: bool,
) -> None:
    arrivals = sorted(_arrival_times(window, start_s, rng))
    count = len(arrivals)
    output_tokens = draw_lengths(window.output_tokens, count, rng)
    input_tokens = draw_lengths(window.input_tokens, count, rng)
    for index in range(count):
        output_tokens[index] = max(1, min(output_tokens[index], max_tokens - 1))
        input_tokens[index] = max(1, min(input_tokens[index], max_tokens - output_tokens[index]))
    load.arrival_s.extend(arrivals)
    load.input_tokens.extend(input_tokens)
    load.output_tokens.extend(output_tokens)
    if shares_prefixes:
        bounds = [int(low) for low, _, _ in window.input_tokens.buckets] or [0]
        groups = [bounds[max(0, bisect_left(bounds, tokens) - 1)] for tokens in input_tokens]
        prefixes = _prefix_lengths(groups, input_tokens, window.cached_share)
        load.group.extend(groups)
        load.prefix_tokens.extend(
            min(prefixes[group], tokens) for group, tokens in zip(groups, input_tokens, strict=True)
        )


def _arrival_times(window: Window, start_s: float, rng: Random) -> Iterator[float]:
    """Yields random times within each step; shares of requests add up over steps."""
    step_s = window.seconds / len(window.arrivals)
    sums = [round(total) for total in accumulate(window.arrivals)]
    last = 0
    for number, total in enumerate(sums):
        for _ in range(total - last):
            yield start_s + (number + rng.random()) * step_s
        last = max(last, total)


def draw_lengths(lengths: TokenLengths, count: int, rng: Random) -> list[int]:
    """Returns `count` lengths in random order, with the measured shares of buckets and mean."""
    total = sum(values for _, _, values in lengths.buckets)
    if not total:
        return [max(1, round(lengths.mean))] * count
    exponent = _exponent(lengths)
    sums = list(accumulate(values for _, _, values in lengths.buckets))
    by_bucket = [0] * len(sums)
    for number in range(count):
        # Equal distances over the buckets: no bucket has more or less than its share.
        by_bucket[bisect_left(sums, (number + 0.5) / count * total)] += 1
    drawn = []
    for (low, high, _), values in zip(lengths.buckets, by_bucket, strict=True):
        top = upper_bound(low, high)
        for number in range(values):
            position = ((number + 0.5) / values) ** exponent
            drawn.append(max(1, round(low + 1 + (top - low - 1) * position)))
    rng.shuffle(drawn)
    return drawn


def upper_bound(low: float, high: float | None) -> float:
    """Returns the upper bound of a bucket; for the last one the next bound of 1, 2, 5, 10."""
    if high is not None:
        return high
    if low < 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(low))
    return min(MAX_MEAN, next(step * power for step in (1, 2, 5, 10) if step * power > low))


def _exponent(lengths: TokenLengths) -> float:
    """Returns the exponent with which positions in all buckets give the measured mean.

    A uniform position to the power of k has the mean 1 / (k + 1).
    """
    total = sum(values for _, _, values in lengths.buckets)
    least = 0.0
    width = 0.0
    for low, high, values in lengths.buckets:
        least += (low + 1) * values
        width += (upper_bound(low, high) - low - 1) * values
    if width <= 0:
        return 1.0
    share = (lengths.mean * total - least) / width
    share = min(0.98, max(0.02, share))
    return 1 / share - 1


def _prefix_lengths(
    groups: Sequence[int], input_tokens: Sequence[int], share: float
) -> dict[int, int]:
    """Returns the prefix of each group, in tokens; together they are `share` of the prompts."""
    lengths: dict[int, list[int]] = {}
    for group, tokens in zip(groups, input_tokens, strict=True):
        lengths.setdefault(group, []).append(tokens)
    prefixes = {}
    missing = 0.0
    for group, members in sorted(lengths.items()):
        missing += share * sum(members)
        prefixes[group] = _prefix_length(members, missing)
        missing -= sum(min(prefixes[group], tokens) for tokens in members)
    return prefixes


def _prefix_length(input_tokens: Sequence[int], shared_tokens: float) -> int:
    """Returns the length of a prefix, in whole blocks, with `shared_tokens` in all prompts."""
    low = 0
    high = max(input_tokens)
    while low < high:
        middle = (low + high) // 2
        if sum(min(middle, tokens) for tokens in input_tokens) < shared_tokens:
            low = middle + 1
        else:
            high = middle
    return round(high / BLOCK_TOKENS) * BLOCK_TOKENS
