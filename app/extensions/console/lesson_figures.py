"""The figures that the text of a lesson explains, computed from its frames."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from app.extensions.console.frames import FIGURES, EndRow, Frame
from app.extensions.console.lesson import Lesson

LONG_PROMPT_TOKENS = 10_000
"""A lesson has at most one longer prompt, on one or two engines."""


class LessonFigures:
    """Figures of a played lesson, as texts."""

    def __init__(self, lesson: Lesson, frames: Sequence[Frame]) -> None:
        self._slots = lesson.engine.max_num_seqs
        self._frames = frames
        self._arrivals_ms = {row[0]: row[5] for frame in frames for row in frame.new}
        self._prompts = {row[0]: row[3] for frame in frames for row in frame.new}
        self._ends = {row[0]: row for frame in frames for row in frame.ended}
        self._gaps_ms: list[float] = []
        for frame in frames:
            for tenths, count in zip(frame.itl[::2], frame.itl[1::2], strict=True):
                self._gaps_ms += [tenths / 10] * count
        self._gaps_ms.sort()
        self._long = [
            number for number, tokens in self._prompts.items() if tokens > LONG_PROMPT_TOKENS
        ]
        """Bars of the long prompt."""

    def running(self) -> str:
        """Returns the most running requests."""
        return f"{self._peak('running'):.0f} of {self._slots} slots"

    def waiting(self) -> str:
        """Returns the most waiting requests."""
        return f"{self._peak('waiting'):.0f}"

    def cache(self) -> str:
        """Returns the largest used share of the KV cache."""
        return f"{self._peak('cache_usage'):.1%}".replace("%", " %")

    def preemptions(self) -> str:
        """Returns the number of preemptions."""
        return f"{self._peak('preemptions'):.0f}"

    def recomputed(self) -> str:
        """Returns the prefill tokens beyond the first computation of each prompt."""
        computed = sum(step[2] for frame in self._frames for step in frame.steps)
        return f"{computed - sum(self._prompts.values()):,}"

    def gap(self) -> str:
        """Returns the longest gap between tokens."""
        return _time(self._gaps_ms[-1])

    def gap_p99(self) -> str:
        """Returns the p99 of the gaps between tokens."""
        return _time(self._gaps_ms[int(len(self._gaps_ms) * 0.99)])

    def chunks(self) -> str:
        """Returns the number of steps that computed the long prompt."""
        numbers = [number for frame in self._frames for number in frame.chunks[::2]]
        return f"{1 + sum(number in self._long for number in numbers)}"

    def first(self) -> str:
        """Returns the time to the first token of the long prompt."""
        first_ms = max(self._first_ms(self._ends[number]) for number in self._long)
        return _time(first_ms - min(self._arrivals_ms[number] for number in self._long))

    def transfer(self) -> str:
        """Returns the time from the end of the prefill to the first step of the other engine."""
        decode_number, prefill_number = sorted(self._long)
        scheduled_ms = self._ends[decode_number][5]
        assert scheduled_ms is not None
        return _time(scheduled_ms - self._ends[prefill_number][2])

    def new_first(self) -> str:
        """Returns the median time to the first token of prompts that were not cached."""
        return self._median_first(is_cached=False)

    def known_first(self) -> str:
        """Returns the median time to the first token of prompts that were cached."""
        return self._median_first(is_cached=True)

    def hits(self) -> str:
        """Returns the prompt tokens that were found in the cache."""
        return f"{self._peak('hits'):,.0f}"

    def _peak(self, name: str) -> float:
        place = FIGURES.index(name)
        return max(frame.figures[place] for frame in self._frames)

    def _median_first(self, is_cached: bool) -> str:
        waits_ms: list[float] = []
        for number, row in self._ends.items():
            if bool(row[4]) == is_cached:
                waits_ms.append(self._first_ms(row) - self._arrivals_ms[number])
        return _time(median(waits_ms))

    def _first_ms(self, row: EndRow) -> float:
        first_ms = row[6]
        assert first_ms is not None
        return first_ms


FIGURE_OF: Mapping[str, Callable[[LessonFigures], str]] = {
    "Most running requests": LessonFigures.running,
    "Most waiting requests": LessonFigures.waiting,
    "Fullest KV cache": LessonFigures.cache,
    "Preemptions": LessonFigures.preemptions,
    "Tokens computed again": LessonFigures.recomputed,
    "Longest gap between tokens": LessonFigures.gap,
    "p99 of the gaps": LessonFigures.gap_p99,
    "Chunks of r9": LessonFigures.chunks,
    "First token of r9 after": LessonFigures.first,
    "Wait for its KV cache": LessonFigures.transfer,
    "First token of new prompts": LessonFigures.new_first,
    "First token of prefix hits": LessonFigures.known_first,
    "Prompt tokens from the cache": LessonFigures.hits,
}
"""Figures by their labels."""


def figures_of(lesson: Lesson, frames: Sequence[Frame]) -> list[tuple[str, str]]:
    """Returns the labels and the values of a lesson's figures."""
    figures = LessonFigures(lesson, frames)
    return [(label, FIGURE_OF[label](figures)) for label in lesson.figures]


def _time(time_ms: float) -> str:
    """Returns a time as the page writes it."""
    if time_ms >= 999.5:
        return f"{time_ms / 1000:.2f} s"
    if time_ms >= 99.95:
        return f"{time_ms:.0f} ms"
    return f"{time_ms:.1f} ms"
