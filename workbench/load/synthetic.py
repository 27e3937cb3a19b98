"""Synthetic loads: distributions of lengths and arrivals, and requests drawn from them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count, islice, repeat
from random import Random

from config import ConfigError
from config.flags import as_argument
from config.sizes import parse_count
from workbench.load.loads import MAX_TOKENS, NO_GROUP, ROWS_PER_PROGRESS, LoadTrace
from workbench.load.progress import Progress, ignore_progress

POISSON = "poisson"
BURSTY = "bursty"
RAMP = "ramp"
CONSTANT = "constant"
ARRIVALS = (POISSON, BURSTY, RAMP, CONSTANT)
BURSTINESS = 0.25
MAX_REQUESTS = 100_000_000
LOGNORMAL_SIGMA = 0.5
SHAREGPT = {"input": (220.0, 1.3), "output": (200.0, 1.0)}
"""Mean and sigma of lognormal lengths close to ShareGPT's, as serving benchmarks sample them."""
SHAREGPT_RANGE = (4, 1024)
NUMBER = r"[0-9]{1,20}|[0-9]{1,9}(?:\.[0-9]{1,9})?[kK]"
LENGTHS_PATTERN = re.compile(
    rf"({NUMBER})(?:-({NUMBER})|:(uniform)|:(lognormal)(?::([0-9]*\.?[0-9]+))?)?", re.ASCII
)
LENGTHS_FORMS = "N, N:lognormal, N:lognormal:SIGMA, N:uniform, LOW-HIGH, or sharegpt"


@dataclass(frozen=True, slots=True)
class Between:
    """Uniform lengths from `low` to `high`, inclusive."""

    low: int
    high: int

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"{self.low}-{self.high}"

    def draw(self, rng: Random) -> int:
        """Returns a length in tokens."""
        return self.sampler(rng)()

    def sampler(self, rng: Random) -> Callable[[], int]:
        """Returns a function that draws a length in tokens."""
        if self.low == self.high:
            return lambda: self.low
        return partial(rng.randint, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal lengths, cut to the range from `low` to `high`."""

    mean: float
    sigma: float
    """Standard deviation of the lengths' logarithms."""
    low: int = 1
    high: int = MAX_TOKENS

    def __str__(self) -> str:
        return f"{self.mean:g}:lognormal:{self.sigma:g}"

    def draw(self, rng: Random) -> int:
        """Returns a length in tokens."""
        return self.sampler(rng)()

    def sampler(self, rng: Random) -> Callable[[], int]:
        """Returns a function that draws a length in tokens."""
        mu = math.log(self.mean) - self.sigma**2 / 2
        sigma = self.sigma
        low = self.low
        high = self.high
        lognormvariate = rng.lognormvariate

        def sample() -> int:
            tokens = lognormvariate(mu, sigma)
            if low <= tokens <= high:
                return round(tokens)
            return low if tokens < low else high

        return sample


Lengths = Between | Lognormal
"""Distribution of the tokens of prompts or answers."""


def read_lengths(text: str, direction: str) -> Lengths:
    """Reads the lengths of "input" or "output".

    Raises:
        ValueError: The text has none of `LENGTHS_FORMS`, or a number is out of its range.
    """
    if text == "sharegpt":
        return Lognormal(*SHAREGPT[direction], *SHAREGPT_RANGE)
    match = LENGTHS_PATTERN.fullmatch(text)
    counts = []
    if match is not None:
        with suppress(ValueError):
            counts = [parse_count(number) for number in match.group(1, 2) if number]
    if match is None or not counts or not all(1 <= count <= MAX_TOKENS for count in counts):
        raise ValueError(
            f"must have the form {LENGTHS_FORMS}, with token counts from 1 to {MAX_TOKENS}"
            " (2k is 2000)"
        )
    tokens = counts[0]
    high = counts[-1]
    sigma = float(match[5] or LOGNORMAL_SIGMA)
    if tokens > high:
        raise ValueError(f"{tokens} must not exceed {high}")
    if not 0 < sigma <= 5:
        raise ValueError("SIGMA must be greater than 0 and at most 5")
    if match[3]:
        return Between(max(1, tokens // 2), tokens + tokens // 2)
    if match[4]:
        return Lognormal(float(tokens), sigma)
    return Between(tokens, high)


def lengths(direction: str) -> Callable[[str], Lengths]:
    """Returns a type of argparse for the lengths of "input" or "output"."""
    return as_argument(partial(read_lengths, direction=direction))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Parameters of a synthetic load. Equal recipes make equal loads."""

    input_tokens: Lengths = Lognormal(1000.0, LOGNORMAL_SIGMA)
    output_tokens: Lengths = Lognormal(128.0, LOGNORMAL_SIGMA)
    """Lengths vary, as equal lengths would favor policies that ignore load."""
    rate: float | None = None
    """Mean requests per second; with None all arrive at once."""
    arrivals: str = POISSON
    burstiness: float = BURSTINESS
    """Shape of the gamma distribution of gaps, for bursty arrivals; 1 is Poisson, less is burstier.
    """
    ramp_from: float = 0.0
    """Rate at the start of a ramp, which ends at `rate`."""
    seconds: float | None = None
    """Limit of the load, like `requests`; the first limit that is reached ends the load. At least
    one limit is set; a ramp needs `seconds`.
    """
    requests: int | None = None
    prefix_groups: int = 0
    """Number of groups; the prompts of a group begin with the same `prefix_tokens` tokens."""
    prefix_tokens: int = 0
    turns: int = 1
    """Turns of each session. With more than one, rate and requests are of sessions, and input
    tokens of turns.
    """
    think_s: float = 0.0
    """Mean time from an answer until the next turn, exponentially distributed."""
    seed: int = 1

    def __str__(self) -> str:
        text = "all at once" if self.rate is None else f"{self.arrivals} at {self.rate:g}/s"
        text += f", prompts of {self.input_tokens} tokens"
        if self.prefix_groups:
            text += f", after {self.prefix_tokens} of {self.prefix_groups} groups"
        text += f", answers of {self.output_tokens}"
        if self.turns > 1:
            text += f", in sessions of {self.turns} turns"
        return text

    @property
    def expected_requests(self) -> float:
        """Mean number of requests, if no session ends early."""
        max_sessions = math.inf if self.requests is None else self.requests
        if self.rate is None or self.seconds is None:
            return max_sessions * self.turns
        mean_rate = self.rate
        if self.arrivals == RAMP:
            mean_rate = (self.ramp_from + self.rate) / 2
        return min(mean_rate * self.seconds, max_sessions) * self.turns


def draw_load(
    recipe: Recipe, max_request_tokens: int, progress: Progress = ignore_progress
) -> LoadTrace:
    """Draws a load.

    Lognormal lengths are cut so that a request has at most `max_request_tokens` tokens.
    `progress` receives the number of requests.

    Raises:
        ConfigError: The load would have no requests, or too many.
    """
    return _Drawing(recipe, max_request_tokens, progress).draw()


class _Drawing:
    """Draws one load; each quantity has its own random numbers."""

    def __init__(self, recipe: Recipe, max_request_tokens: int, progress: Progress) -> None:
        self._recipe = recipe
        self._max_request_tokens = max_request_tokens
        self._progress = progress
        self._load = LoadTrace("the load")
        self._arrivals_rng = Random(f"{recipe.seed}/arrivals")
        lengths_rng = Random(f"{recipe.seed}/lengths")
        self._draw_input = recipe.input_tokens.sampler(lengths_rng)
        self._draw_output = recipe.output_tokens.sampler(lengths_rng)
        self._cuts_input = isinstance(recipe.input_tokens, Lognormal)
        self._cuts_output = isinstance(recipe.output_tokens, Lognormal)
        self._groups_rng = Random(f"{recipe.seed}/groups")
        self._thinking_rng = Random(f"{recipe.seed}/thinking")

    def draw(self) -> LoadTrace:
        recipe = self._recipe
        times_s = _arrival_times(recipe, self._arrivals_rng)
        if recipe.turns == 1 and not recipe.prefix_groups:
            self._draw_alone(times_s)
        else:
            for session, arrival_s in enumerate(times_s):
                self._draw_session(session, arrival_s)
        if not self._load:
            raise ConfigError(
                f"at {recipe.rate:g} requests/s, no request arrives within {recipe.seconds:g} s"
            )
        return self._load

    def _draw_alone(self, times_s: Iterator[float]) -> None:
        """Draws requests without a session or a group."""
        load = self._load
        for number, arrival_s in enumerate(times_s, 1):
            input_tokens, output_tokens = self._draw_lengths(0)
            load.arrival_s.append(arrival_s)
            load.input_tokens.append(input_tokens)
            load.output_tokens.append(output_tokens)
            if not number % ROWS_PER_PROGRESS:
                self._progress(number)

    def _draw_session(self, session: int, arrival_s: float) -> None:
        recipe = self._recipe
        load = self._load
        group = NO_GROUP
        if recipe.prefix_groups:
            group = self._groups_rng.randrange(recipe.prefix_groups)
        history_tokens = recipe.prefix_tokens
        for turn in range(recipe.turns):
            input_tokens, output_tokens = self._draw_lengths(history_tokens)
            total_tokens = history_tokens + input_tokens + output_tokens
            if turn and total_tokens > self._max_request_tokens:
                break
            load.arrival_s.append(arrival_s)
            load.input_tokens.append(history_tokens + input_tokens)
            load.output_tokens.append(output_tokens)
            history_tokens = total_tokens
            if recipe.prefix_groups:
                load.group.append(group)
                load.prefix_tokens.append(recipe.prefix_tokens)
            if recipe.turns > 1:
                load.session.append(session)
                think_s = 0.0
                if turn and recipe.think_s:
                    think_s = self._thinking_rng.expovariate(1 / recipe.think_s)
                load.think_s.append(think_s)
            if not len(load) % ROWS_PER_PROGRESS:
                self._progress(len(load))

    def _draw_lengths(self, history_tokens: int) -> tuple[int, int]:
        """Returns the new input tokens of a turn, and its output tokens."""
        output_tokens = self._draw_output()
        input_tokens = self._draw_input()
        available = self._max_request_tokens - history_tokens
        if self._cuts_output and output_tokens >= available:
            output_tokens = max(1, available - 1)
        if self._cuts_input and input_tokens > available - output_tokens:
            input_tokens = max(1, available - output_tokens)
        return input_tokens, output_tokens


def _arrival_times(recipe: Recipe, rng: Random) -> Iterator[float]:
    if recipe.expected_requests > MAX_REQUESTS:
        raise ConfigError(f"the load would have more than {MAX_REQUESTS:,} requests")
    if recipe.rate is None:
        return repeat(0.0, recipe.requests or 0)
    times_s: Iterator[float]
    if recipe.arrivals == CONSTANT:
        times_s = (number / recipe.rate for number in count())
    elif recipe.arrivals == RAMP:
        assert recipe.seconds is not None
        times_s = _ramp(recipe.ramp_from, recipe.rate, recipe.seconds, rng)
    else:
        shape = recipe.burstiness if recipe.arrivals == BURSTY else 1.0
        times_s = gamma_arrivals(recipe.rate, shape, rng)
    if recipe.seconds is not None:
        times_s = _until(recipe.seconds, times_s)
    return islice(times_s, recipe.requests)


def _until(end_s: float, times_s: Iterator[float]) -> Iterator[float]:
    for time_s in times_s:
        if time_s >= end_s:
            return
        yield time_s


def gamma_arrivals(rate: float, shape: float, rng: Random) -> Iterator[float]:
    """Yields endless times in seconds.

    Gaps have a gamma distribution; shape 1 is a Poisson process.
    """
    time_s = 0.0
    while True:
        if shape == 1.0:
            time_s += rng.expovariate(rate)
        else:
            time_s += rng.gammavariate(shape, 1 / (shape * rate))
        yield time_s


def _ramp(low: float, high: float, seconds: float, rng: Random) -> Iterator[float]:
    """Yields a Poisson process whose rate goes linearly from `low` to `high`.

    Times of a process of rate 1 are mapped by the inverse of the expected number of requests.
    """
    growth = (high - low) / seconds
    for expected_requests in gamma_arrivals(1.0, 1.0, rng):
        if not growth:
            yield expected_requests / low
            continue
        square = low * low + 2 * growth * expected_requests
        if square < 0:  # a falling ramp has reached rate 0
            return
        yield (math.sqrt(square) - low) / growth
