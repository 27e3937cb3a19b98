"""The recorders, KV caches and executors of all ranks, each as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.core.assembly.derived import cache_config
from app.core.base.metrics.recorder import (
    Distribution,
    Figures,
    LatencyTally,
    Recorder,
    RecorderOptions,
)

if TYPE_CHECKING:
    from app.core.engine.engine import Engine
    from app.core.engine.kvcache.cache import KVCacheManager
    from config import Settings


class RankRecorder(Recorder):
    """The metrics of all ranks: one page, sums of their numbers, and events of the whole server.

    The recorders of the ranks share their families; each has series with its number there. An event
    of no single rank, such as a rejection before the choice of a rank, counts for the first one.
    """

    def __init__(self, settings: Settings, ranks: Sequence[Recorder], first_rank: int) -> None:
        """`ranks` are the recorders in order; all were built beside the first one."""
        self._ranks = ranks
        super().__init__(
            settings.model.served_names[0],
            settings.model.max_model_len,
            cache_config(settings.kvcache, settings.model, settings.api),
            str(first_rank),
            options=RecorderOptions(beside=ranks[0]),
        )
        self.read_load = self._first_load

    @property
    def tally(self) -> LatencyTally | None:
        """Also counts each latency of any rank, while set."""
        return self._ranks[0].tally

    @tally.setter
    def tally(self, tally: LatencyTally | None) -> None:
        for recorder in self._ranks:
            recorder.tally = tally

    def fold(self) -> None:
        """Counts all stored rows of all ranks."""
        super().fold()
        for recorder in self._ranks:
            recorder.fold()

    def sleeping(self, level: int | None) -> None:
        """Sets the sleep level of all ranks."""
        for recorder in self._ranks:
            recorder.sleeping(level)

    def figures(self) -> Figures:
        """Returns the sums over all ranks, and the mean use of their KV caches."""
        ranks = [recorder.figures() for recorder in self._ranks]
        first = ranks[0]
        bucket_counts = zip(*(figures.e2e.counts for figures in ranks), strict=True)
        return Figures(
            running=sum(figures.running for figures in ranks),
            waiting=sum(figures.waiting for figures in ranks),
            cache_usage=sum(figures.cache_usage for figures in ranks) / len(ranks),
            preemptions=sum(figures.preemptions for figures in ranks),
            generated=sum(figures.generated for figures in ranks),
            prompt=sum(figures.prompt for figures in ranks),
            cached=sum(figures.cached for figures in ranks),
            queries=sum(figures.queries for figures in ranks),
            hits=sum(figures.hits for figures in ranks),
            finished={
                reason: sum(figures.finished[reason] for figures in ranks)
                for reason in first.finished
            },
            e2e=Distribution(
                first.e2e.bounds,
                tuple(map(sum, bucket_counts)),
                sum(figures.e2e.sum for figures in ranks),
            ),
        )

    def _first_load(self) -> tuple[int, int, float]:
        """Returns the load of the first rank, whose series this recorder shares."""
        return self._ranks[0].read_load()


class RankCaches:
    """Commands to the KV caches of all ranks."""

    def __init__(self, caches: Sequence[KVCacheManager]) -> None:
        self._caches = caches

    @property
    def caching(self) -> bool:
        """True while the caches keep blocks of prompts."""
        return self._caches[0].caching

    @caching.setter
    def caching(self, caching: bool) -> None:
        for cache in self._caches:
            cache.caching = caching

    def reset(self, under_requests: bool, external: bool) -> bool:
        """Empties all caches; returns False if running requests prevent that for one."""
        return all([cache.reset(under_requests, external) for cache in self._caches])


class RankExecutors:
    """Pauses and resumes the engines of all ranks."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines

    def pause(self) -> None:
        """Starts no more sequences."""
        for engine in self._engines:
            engine.executor.pause()

    def hold(self) -> None:
        """Computes no tokens in steps."""
        for engine in self._engines:
            engine.executor.hold()

    def preempt_all(self) -> None:
        """Preempts the running sequences of steps."""
        for engine in self._engines:
            engine.executor.preempt_all()

    def resume(self) -> None:
        """Starts sequences again."""
        for engine in self._engines:
            engine.executor.resume()
