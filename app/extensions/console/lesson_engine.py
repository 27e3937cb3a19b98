"""Plays a lesson on private simulated engines with a virtual clock.

The result is a recording of the page. It depends neither on the settings of the server nor on its
load, and takes a fraction of a second, with pauses for other requests.
"""

import time
from collections.abc import Callable
from functools import partial
from itertools import count

from app.core.base.clock.pause import Pace
from app.core.engine.request import SequenceOutcome
from app.extensions.console.frames import Frame, Picture
from app.extensions.console.lesson import PROFILE, Arrival, Lesson
from app.extensions.console.lesson_figures import figures_of
from app.extensions.console.small_engine import BLOCK_SIZE, SmallEngine

FRAME_S = 0.05
TAIL_S = 0.5
"""Time after the last end."""
MAX_SECONDS = 60.0
PREFIX_TOKENS = 5984
"""Tokens that prompts with the same prefix share: whole blocks."""
FIRST_UNIQUE_TOKEN = 1000
"""Shared prefixes consist of smaller token ids."""
PREFILL_ENGINE = 1
"""Number of the engine that only computes prompts; the other engine is 0."""
ENGINE_BARS = 1000
"""Bars of engine 1 have this number and higher ones."""


class LessonEngine:
    """Plays one lesson on one engine, or on two if it separates prefill and decode."""

    def __init__(self, lesson: Lesson) -> None:
        self._lesson = lesson
        self._token_ids = count(FIRST_UNIQUE_TOKEN)
        self._engine = SmallEngine(lesson.engine)
        self._prefill_engine: SmallEngine | None = None
        if lesson.separates_prefill:
            self._prefill_engine = SmallEngine(lesson.engine)
        self._prefilled: list[tuple[float, Callable[[], None]]] = []
        """Ends of prefills on the other engine, with functions that submit their requests here."""

    def play(self) -> list[Picture | Frame]:
        """Returns a picture, and the frames until all requests have ended. May pause."""
        observer = self._engine.observer
        observer.start()
        if self._prefill_engine is not None:
            self._prefill_engine.observer.start()
        server = self._server()
        picture = observer.picture(server)
        frames: list[Frame] = []
        arrivals = sorted(self._lesson.arrivals, key=_arrival_time)
        pause = Pace(time.monotonic)
        end_s = MAX_SECONDS
        sent = 0
        ended = 0
        frame_s = 0.0
        while frame_s < end_s:
            frame_s += FRAME_S
            while sent < len(arrivals) and arrivals[sent].at_s <= frame_s:
                self._advance_to(arrivals[sent].at_s)
                self._send(arrivals[sent], f"r{sent + 1}")
                sent += 1
            self._advance_to(frame_s)
            frame = observer.frame()
            ended += len(frame.ended)
            if frame.ended and ended == len(arrivals):
                end_s = frame_s + TAIL_S
            if self._prefill_engine is not None:
                _add_engine(frame, self._prefill_engine.observer.frame())
            frames.append(frame)
            pause()
        server["figures"] = figures_of(self._lesson, frames)
        return [picture, *frames]

    def _advance_to(self, moment_s: float) -> None:
        if self._prefill_engine is not None:
            self._prefill_engine.advance_to(moment_s)
        for prefilled_s, submit in self._prefilled:
            self._engine.advance_to(prefilled_s)
            submit()
        self._prefilled.clear()
        self._engine.advance_to(moment_s)

    def _send(self, arrival: Arrival, name: str) -> None:
        shared = 0
        if arrival.prefix:
            shared = PREFIX_TOKENS
        prompt = [arrival.prefix] * shared
        prompt += [next(self._token_ids) for _ in range(arrival.prompt_tokens - shared)]
        if arrival.is_remote and self._prefill_engine is not None:
            decode = partial(
                self._engine.submit,
                name,
                prompt,
                arrival.output_tokens,
                remote_prefill=True,
                arrival_s=arrival.at_s,
            )
            hand_over = partial(self._hand_over, decode)
            self._prefill_engine.submit(name, prompt, max_tokens=1, on_end=hand_over)
        else:
            self._engine.submit(name, prompt, arrival.output_tokens)

    def _hand_over(self, submit: Callable[[], None], outcome: SequenceOutcome) -> None:
        self._prefilled.append((outcome.ended_s, submit))

    def _server(self) -> dict[str, object]:
        """Returns the constants of the engine, as in a picture of the server."""
        size = self._lesson.engine
        engines: list[str] = []
        if self._prefill_engine is not None:
            engines = ["Engine B: decode", "Engine A: prefill"]
        return {
            "plays": "",
            "model": f"lesson: {self._lesson.title}",
            "rank": 0,
            "ranks": {},
            "places": size.max_num_seqs,
            "shared_steps": True,
            "profile": PROFILE,
            "budget": size.max_num_batched_tokens,
            "blocks": self._engine.blocks,
            "numbered": True,
            "block_size": BLOCK_SIZE,
            "adapter_slots": 0,
            "publishes": False,
            "index": False,
            "scripts": False,
            "engines": engines,
        }


def _arrival_time(arrival: Arrival) -> float:
    return arrival.at_s


def _add_engine(frame: Frame, other: Frame) -> None:
    """Adds the bars and the steps of the prefill engine to a frame."""
    frame.new += [(ENGINE_BARS + row[0], *row[1:]) for row in other.new]
    frame.phases += [(ENGINE_BARS + row[0], *row[1:]) for row in other.phases]
    frame.ended += [(ENGINE_BARS + row[0], *row[1:]) for row in other.ended]
    for number, tokens in zip(other.computed[::2], other.computed[1::2], strict=True):
        frame.computed += (ENGINE_BARS + number, tokens)
    frame.steps += [(*row[:5], PREFILL_ENGINE) for row in other.steps]
