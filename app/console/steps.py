"""The steps of an engine since the last frame; or, where none are shared, what was computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from app.console.frames import Frame, StepRow
from app.engine.batch import Batch
from app.engine.engine import Engine
from app.engine.request import EngineRequest
from app.engine.sequence import WatchedEngine
from app.engine.stepped import StepExecutor, SteppedSequence
from app.metrics.figures import Figures

MOST_STEPS = 400
"""Of a frame: a step of less than a millisecond is rare."""
MOST_CHUNKS = 2000
"""Numbers in the list of a frame's chunks."""


class Steps:
    """Is told every step while somebody looks. `began_s` is moment 0."""

    def __init__(
        self, engine: WatchedEngine, began_s: float, number_of: Callable[[EngineRequest], int | None]
    ) -> None:
        """`number_of` knows the bars of requests."""
        executor = engine.executor if isinstance(engine, Engine) else None
        self._executor = executor if isinstance(executor, StepExecutor) else None
        self._began_s = began_s
        self._rows: deque[StepRow] = deque(maxlen=MOST_STEPS)
        self._before: Figures | None = None
        self._at_ms = 0.0
        self._number_of = number_of
        self._chunks: list[float] = []
        self._computed: dict[SteppedSequence, int] = {}
        """Tokens of prompts that are computed in part."""

    @property
    def shared(self) -> bool:
        """Whether requests share steps."""
        return self._executor is not None

    @property
    def budget(self) -> int:
        """Most tokens of a step; 0 where there are none."""
        return self._executor.limits.max_num_batched_tokens if self._executor is not None else 0

    def begin(self) -> None:
        if self._executor is not None:
            self._executor.watch_step = self._note

    def end(self) -> None:
        if self._executor is not None:
            self._executor.watch_step = None
        self._rows.clear()
        self._chunks.clear()
        self._computed.clear()
        self._before = None

    def _note(self, batch: Batch[SteppedSequence], start_s: float, end_s: float) -> None:
        decodes = len(batch.decodes) + sum(drafted for drafted, _ in batch.drafts.values())
        begin_ms, took_ms = round((start_s - self._began_s) * 1000, 2), round((end_s - start_s) * 1000, 3)
        self._rows.append((begin_ms, took_ms, batch.tokens - decodes, decodes, batch.sequences))
        if self._executor is not None and (self._executor.prefilling or self._computed):
            self._note_chunks(self._executor, begin_ms + took_ms)

    def _note_chunks(self, executor: StepExecutor, end_ms: float) -> None:
        """Who has a part of the prompt left after this step, and had some of it computed in it."""
        before, self._computed = self._computed, {state: state.computed for state in executor.prefilling}
        for state, computed in self._computed.items():
            if computed == before.get(state) or state.over:
                continue
            number = self._number_of(state.request)
            if number is not None and len(self._chunks) < MOST_CHUNKS:
                self._chunks += (number, round(end_ms, 1))

    def changes(self, frame: Frame, figures: Figures) -> None:
        """Write the steps into `frame`; where none are shared, one for all that was computed."""
        if self._executor is not None:
            frame.steps = list(self._rows)
            self._rows.clear()
            frame.chunks, self._chunks = self._chunks, []
            return
        before, self._before = self._before, figures
        begin_ms, self._at_ms = self._at_ms, frame.at
        if before is None:
            return
        prompts = int(figures.prompt - figures.cached - before.prompt + before.cached)
        decodes = int(figures.generated - before.generated)
        if prompts or decodes:
            took_ms = round(frame.at - begin_ms, 1)
            frame.steps = [(begin_ms, took_ms, prompts, decodes, int(figures.running))]
