"""A load as columns, arrival times and token counts of requests, and how loads are drawn."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, repeat, takewhile
from random import Random

from config import ConfigError
from config.flags import as_argument

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
SESSION_COLUMNS = ("session", "think_s")
MOST_TOKENS = 1 << 30
LONGEST_S = 10_000_000
"""Longest load that is drawn or autoscaled: its looks are counted."""
NO_GROUP = -1
TELL_EVERY = 1 << 14
"""Requests between two progress calls."""


@dataclass(slots=True)
class LoadTrace:
    """Requests in order of arrival, as columns for millions of rows.

    Without groups two are empty.
    """

    origin: str
    """Name of the source, with which error messages begin."""
    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    input_tokens: array[int] = field(default_factory=lambda: array("i"))
    output_tokens: array[int] = field(default_factory=lambda: array("i"))
    group: array[int] = field(default_factory=lambda: array("i"))
    prefix_tokens: array[int] = field(default_factory=lambda: array("i"))
    parents: array[int] = field(default_factory=lambda: array("i"))
    """Parent of each group in a prefix tree, NO_GROUP for a root.

    Empty for groups without a tree.
    """
    node_tokens: int = MOST_TOKENS
    """Tokens of the prompt that belong to each node of the tree."""
    session: array[int] = field(default_factory=lambda: array("i"))
    """Conversation of each request, whose turns are in order; NO_GROUP for none.

    Empty without sessions.
    """
    think_s: array[float] = field(default_factory=lambda: array("d"))
    """Time from the answer before a later turn until that turn, whose `arrival_s` is of the row
    above.
    """
    kind: array[int] = field(default_factory=lambda: array("i"))
    """Place of each request's class in `classes`; empty without classes."""
    classes: list[str] = field(default_factory=list)
    left_out: int = 0
    """Rows of a public trace without prompt or answer tokens: requests that failed."""
    rows: str = "request"
    first_row: int = 1
    """Word for a row and number of the first one, in error messages."""

    def __len__(self) -> int:
        return len(self.arrival_s)

    def row(self, number: int) -> str:
        return f"{self.origin}, {self.rows} {number + self.first_row}"

    def path(self, number: int) -> list[int]:
        """Returns the groups from the root of the prefix tree to that of the request; one without a
        tree.
        """
        node, path = self.group[number], []
        while node != NO_GROUP:
            path.append(node)
            node = self.parents[node] if self.parents else NO_GROUP
        return path[::-1]

    def next_turns(self) -> dict[int, int]:
        """Returns the later turns of sessions: number of a request -> number of the next turn."""
        latest: dict[int, int] = {}
        following = {}
        for number, session in enumerate(self.session):
            if session != NO_GROUP:
                if session in latest:
                    following[latest[session]] = number
                latest[session] = number
        return following


POISSON, BURSTY, RAMP, CONSTANT = "poisson", "bursty", "ramp", "constant"
ARRIVALS = (POISSON, BURSTY, RAMP, CONSTANT)
BURSTINESS = 0.25
MOST_REQUESTS = 100_000_000
LOGNORMAL_SIGMA = 0.5
SHAREGPT = {"input": (220.0, 1.3), "output": (200.0, 1.0)}
"""Mean and sigma of lognormal lengths close to ShareGPT's, as serving benchmarks sample them."""
SHAREGPT_RANGE = (4, 1024)
_LENGTHS = re.compile(
    r"([0-9]{1,20})(?:-([0-9]{1,20})|:(uniform)|:(lognormal)(?::([0-9]*\.?[0-9]+))?)?", re.ASCII
)
FORMS = "N, N:lognormal, N:lognormal:SIGMA, N:uniform, LOW-HIGH or sharegpt"


@dataclass(frozen=True, slots=True)
class Between:
    """Uniform lengths from `low` to `high`, inclusive."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}" if self.low == self.high else f"{self.low}-{self.high}"

    def draw(self, rng: Random) -> int:
        return self.low if self.low == self.high else rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal lengths with this mean; `sigma` is the deviation of their logarithms.

    Cut to a range.
    """

    mean: float
    sigma: float
    low: int = 1
    high: int = MOST_TOKENS

    def __str__(self) -> str:
        return f"{self.mean:g}:lognormal:{self.sigma:g}"

    def draw(self, rng: Random) -> int:
        tokens = rng.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)
        return round(min(max(tokens, self.low), self.high))


Lengths = Between | Lognormal
"""Distribution of the tokens of prompts or answers."""


def read_lengths(text: str, which: str) -> Lengths:
    """Reads the lengths of "input" or "output". Raises ValueError for another form than `FORMS`."""
    if text == "sharegpt":
        return Lognormal(*SHAREGPT[which], *SHAREGPT_RANGE)
    found = _LENGTHS.fullmatch(text)
    if found is None or not all(1 <= int(it) <= MOST_TOKENS for it in found.group(1, 2) if it):
        raise ValueError(f"must be {FORMS}, with whole numbers of tokens from 1 to {MOST_TOKENS}")
    tokens, high, sigma = (
        int(found[1]),
        int(found[2] or found[1]),
        float(found[5] or LOGNORMAL_SIGMA),
    )
    if tokens > high:
        raise ValueError(f"{tokens} must not exceed {high}")
    if not 0 < sigma <= 5:
        raise ValueError("SIGMA must be a number above 0, of at most 5")
    if found[3]:
        return Between(max(1, tokens // 2), tokens + tokens // 2)
    return Lognormal(float(tokens), sigma) if found[4] else Between(tokens, high)


def lengths(which: str) -> Callable[[str], Lengths]:
    return as_argument(lambda text: read_lengths(text, which))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Parameters of a synthetic load. Equal recipes make equal loads."""

    input_tokens: Lengths = Lognormal(1000.0, LOGNORMAL_SIGMA)
    output_tokens: Lengths = Lognormal(128.0, LOGNORMAL_SIGMA)
    """Lengths vary, as equal lengths would favor policies that ignore load."""
    rate: float | None = None
    """Mean requests a second; None: all arrive at once."""
    arrivals: str = POISSON
    burstiness: float = BURSTINESS
    """Shape of the gamma distribution of gaps, for bursty arrivals; 1 is Poisson, less is burstier.
    """
    ramp_from: float = 0.0
    """Rate at the start of a ramp, which ends at `rate`."""
    seconds: float | None = None
    requests: int | None = None
    """Limits of the load:

    the first one reached ends it. At least one is given, for a ramp `seconds`.
    """
    prefix_groups: int = 0
    prefix_tokens: int = 0
    """Number of groups, and tokens of its group at the start of every prompt, before its own
    tokens.
    """
    turns: int = 1
    """Turns of each session, if more than one:

    rate and requests are then of sessions, inputs of turns.
    """
    think_s: float = 0.0
    """Mean time from an answer until the next turn, exponentially distributed."""
    seed: int = 1

    def __str__(self) -> str:
        pace = "all at once" if self.rate is None else f"{self.arrivals} at {self.rate:g}/s"
        shared = (
            f", after {self.prefix_tokens} of {self.prefix_groups} groups"
            if self.prefix_groups
            else ""
        )
        turns = f", in sessions of {self.turns} turns" if self.turns > 1 else ""
        tokens = f"prompts of {self.input_tokens} tokens{shared}, answers of {self.output_tokens}"
        return f"{pace}, {tokens}{turns}"

    @property
    def expected(self) -> float:
        """Requests, where no session ends early."""
        most = math.inf if self.requests is None else self.requests
        if self.rate is None or self.seconds is None:
            return most * self.turns
        mean_rate = (self.ramp_from + self.rate) / 2 if self.arrivals == RAMP else self.rate
        return min(mean_rate * self.seconds, most) * self.turns


def draw_load(
    recipe: Recipe, longest: int, progress: Callable[[int], None] = lambda requests: None
) -> LoadTrace:
    """Returns the load.

    Lognormal lengths are cut so that a request has at most `longest` tokens.
    """
    load = LoadTrace("the load")
    names = ("arrivals", "lengths", "groups", "thinking")
    moments, lengths, groups, thinking = (Random(f"{recipe.seed}/{name}") for name in names)
    for session, at_s in enumerate(_moments(recipe, moments)):
        known = recipe.prefix_tokens
        group = groups.randrange(recipe.prefix_groups) if recipe.prefix_groups else NO_GROUP
        for turn in range(recipe.turns):
            tokens_out = recipe.output_tokens.draw(lengths)
            own = recipe.input_tokens.draw(lengths)
            if isinstance(recipe.output_tokens, Lognormal):
                tokens_out = max(1, min(tokens_out, longest - known - 1))
            if isinstance(recipe.input_tokens, Lognormal):
                own = max(1, min(own, longest - known - tokens_out))
            if turn and known + own + tokens_out > longest:
                break
            load.arrival_s.append(at_s)
            load.input_tokens.append(known + own)
            load.output_tokens.append(tokens_out)
            known += own + tokens_out
            if recipe.prefix_groups:
                load.group.append(group)
                load.prefix_tokens.append(recipe.prefix_tokens)
            if recipe.turns > 1:
                load.session.append(session)
                pauses = turn and recipe.think_s
                load.think_s.append(thinking.expovariate(1 / recipe.think_s) if pauses else 0.0)
            if not len(load) % TELL_EVERY:
                progress(len(load))
    if not load:
        raise ConfigError(
            f"a load of {recipe.rate:g} requests/s has no request in {recipe.seconds:g} s"
        )
    return load


def _moments(recipe: Recipe, rng: Random) -> Iterator[float]:
    most = recipe.requests
    if recipe.expected > MOST_REQUESTS:
        raise ConfigError(f"the load would have more than {MOST_REQUESTS:,} requests")
    if recipe.rate is None:
        return repeat(0.0, most or 0)
    if recipe.arrivals == CONSTANT:
        moments: Iterator[float] = (number / recipe.rate for number in count())
    elif recipe.arrivals == RAMP:
        assert recipe.seconds is not None
        moments = _ramp(recipe.ramp_from, recipe.rate, recipe.seconds, rng)
    else:
        moments = arrivals(
            recipe.rate, recipe.burstiness if recipe.arrivals == BURSTY else 1.0, rng
        )
    if recipe.seconds is not None:
        end_s = recipe.seconds
        moments = takewhile(lambda at_s: at_s < end_s, moments)
    return (
        moments if most is None else (at_s for _, at_s in zip(range(most), moments, strict=False))
    )


def arrivals(rate: float, shape: float, rng: Random) -> Iterator[float]:
    """Yields endless times in seconds; gaps have a gamma distribution, for shape 1 a Poisson
    process.
    """
    at_s = 0.0
    while True:
        at_s += (
            rng.expovariate(rate) if shape == 1.0 else rng.gammavariate(shape, 1 / (shape * rate))
        )
        yield at_s


def _ramp(low: float, high: float, seconds: float, rng: Random) -> Iterator[float]:
    """Yields a Poisson process with a rate that goes linearly from `low` to `high`, out of one of
    rate 1.
    """
    growth = (high - low) / seconds
    for expected in arrivals(1.0, 1.0, rng):
        if not growth:
            yield expected / low
            continue
        inside = low * low + 2 * growth * expected
        if inside < 0:  # a falling ramp has reached rate 0
            return
        yield (math.sqrt(inside) - low) / growth
