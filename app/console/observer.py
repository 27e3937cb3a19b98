"""Looks at an engine while somebody wants to see it: one frame after another, and nothing in between.

Nobody looking, nothing of this is attached to the engine; only which requests have ended is noted (`Bars`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app.console.bars import Bars, in_ms
from app.console.blocks import BlockMap
from app.console.events import Events
from app.console.frames import FIGURES, Frame, Picture
from app.console.steps import Steps
from app.engine.cache_manager import KVCacheManager
from app.engine.engine import Engine
from app.engine.lifecycle import Operations
from app.engine.sequence import WatchedEngine
from app.engine.status import Phase
from app.metrics.figures import Figures

if TYPE_CHECKING:
    from app.kvcache.publisher import Publisher


class Observer:
    """The state of one engine."""

    def __init__(
        self,
        engine: WatchedEngine,
        lifecycle: Operations,
        now: Callable[[], float],
        unix: Callable[[], float],
        cache: KVCacheManager | None = None,
        publisher: Publisher | None = None,
    ) -> None:
        """`now` is the engine's clock, `unix` gives Unix seconds."""
        self._began_s, self._unix = now(), unix
        self._now = now
        self._engine, self._lifecycle = engine, lifecycle
        self._lora = engine.lora if isinstance(engine, Engine) else None
        self.bars = Bars(engine, now, self._began_s)
        self.steps = Steps(engine, self._began_s, self.bars.number_of)
        self._map = None if cache is None else BlockMap(cache.cache)
        self._events = Events(publisher)
        self._last: Figures | None = None
        self.load: Callable[[], dict[str, Any] | None] = lambda: None
        """What the load generator does."""
        self.is_open = False

    def begin(self) -> None:
        """Somebody looks."""
        self.is_open = True
        self.bars.begin(counts_blocks=self._map is None and self.steps.shared)
        self.steps.begin()
        self._events.begin()
        if self._map is not None:
            self._map.begin()

    def end(self) -> None:
        """Nobody looks any more."""
        self.is_open = False
        if self._map is not None:
            self._map.end()
        self._events.end()
        self.steps.end()
        self.bars.end()
        self._last = None

    @property
    def state(self) -> str:
        """What an operator has made of the server."""
        if self._lifecycle.is_sleeping:
            return "sleeping"
        if self._engine.draining:
            return "draining"
        return "paused" if self._lifecycle.paused else "serving"

    def summary(self) -> dict[str, Any]:
        """The figures by name, for whoever looks from elsewhere."""
        figures = self._engine.recorder.figures()
        return {"state": self.state, **dict(zip(FIGURES, numbers_of(figures), strict=True))}

    def frame(self) -> Frame:
        """What has changed since the last one. May pause."""
        figures, last = self._engine.recorder.figures(), self._last
        frame = self._head(figures)
        self.bars.changes(frame)
        if self._map is not None:
            for row in frame.phases:
                if row[1] == Phase.PREEMPTED:
                    self._map.forget(row[0])
            for bar in self.bars.live():
                self._map.claim(bar, frame)
            for ended in frame.ended:
                self._map.forget(ended[0])
            self._map.changes(frame)
        self.steps.changes(frame, figures)
        self._events.changes(frame)
        if last is None or last.ttft != figures.ttft:
            frame.ttft = list(figures.ttft.counts)
        if last is None or last.inter_token != figures.inter_token:
            frame.itl = list(figures.inter_token.counts)
        self._last = figures
        return frame

    def _head(self, figures: Figures) -> Frame:
        at_ms = in_ms(self._now() - self._began_s)
        lora = self._lora
        adapters = None if lora is None else {name: lora.running(name) for name in lora} or None
        return Frame(
            at=at_ms, state=self.state, figures=numbers_of(figures), adapters=adapters, load=self.load()
        )

    def picture(self, server: dict[str, Any]) -> Picture:
        """All there is, as the last frame left it. `server` is told as it is."""
        figures = self._last or self._engine.recorder.figures()
        frame = self._head(figures)
        self.bars.picture(frame)
        if self._map is not None:
            self._map.picture(frame)
        frame.ttft, frame.itl = list(figures.ttft.counts), list(figures.inter_token.counts)
        return Picture(
            began=self._unix() - (self._now() - self._began_s),
            server=server,
            ttft_bounds=figures.ttft.bounds,
            itl_bounds=figures.inter_token.bounds,
            frame=frame,
        )


def numbers_of(figures: Figures) -> list[float]:
    """In the order of `FIGURES`."""
    return [
        figures.finished.get(name, 0.0) if (value := getattr(figures, name, None)) is None else value
        for name in FIGURES
    ]
