"""The engines of all ranks as one `EngineClient`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from collections.abc import Sequence as ListOf
from itertools import chain

from app.core.base.metrics.recorder import Recorder
from app.core.engine.client import EngineClient
from app.core.engine.engine import Engine
from app.core.engine.errors import DrainingError, EngineError, QueueFullError
from app.core.engine.outputs import Emit
from app.core.engine.request import EngineRequest
from app.core.engine.sequence import Handle, Sequence
from app.extensions.data_parallel.balance import RankLoad, least_busy
from app.extensions.data_parallel.ranks import RankExecutors
from app.extensions.data_parallel.shared_handle import SharedHandle
from config.settings import SchedulingSettings


class BalancedEngine(EngineClient):
    """Runs each prompt on the least busy engine, or on the one that the request names.

    All choices of a prompt run on one engine.
    """

    healthy = True

    def __init__(
        self, scheduling: SchedulingSettings, recorder: Recorder, engines: ListOf[Engine]
    ) -> None:
        """`engines` has one engine for each rank, in order; `recorder` has the metrics of all."""
        self.engines = engines
        super().__init__(scheduling, recorder)
        self.executor = RankExecutors(engines)
        self._arriving = [0] * len(engines)
        """Prompts of each engine between the choice of the engine and their admission."""
        self._start = 0
        self._ended = Handle(self._active)
        """The handle of requests that end as they are submitted."""

    @property
    def ranks(self) -> ListOf[EngineClient]:
        """The engines of all ranks, in order."""
        return self.engines

    @property
    def running(self) -> int:
        """Number of running sequences of all ranks."""
        return sum(engine.running for engine in self.engines)

    @property
    def waiting(self) -> int:
        """Number of waiting sequences of all ranks."""
        return sum(engine.waiting for engine in self.engines)

    @property
    def in_flight(self) -> int:
        """Number of unfinished submissions to all ranks."""
        return sum(engine.in_flight for engine in self.engines)

    @property
    def refuses_requests(self) -> bool:
        """True during a pause that rejects new requests."""
        return self.engines[0].refuses_requests

    @refuses_requests.setter
    def refuses_requests(self, refuses: bool) -> None:
        for engine in self.engines:
            engine.refuses_requests = refuses

    def submit(
        self, requests: ListOf[EngineRequest], emit: Emit, *, awaited: bool = False
    ) -> Handle:
        """Runs each prompt of a request on one engine; see `EngineClient.submit`."""
        if not requests:
            return self._ended
        self.check_accepting(len(requests))
        # An engine may pause before it admits the prompts: later requests must count them.
        arriving: Counter[int] = Counter()
        try:
            shares = self._shares(requests, arriving)
            handles = self._submit_shares(shares, emit, awaited)
        finally:
            for position, prompts in arriving.items():
                self._arriving[position] -= prompts
        if len(handles) == 1:
            return handles[0]
        return SharedHandle(handles)

    def _shares(
        self, requests: ListOf[EngineRequest], arriving: Counter[int]
    ) -> dict[int, list[EngineRequest]]:
        """Returns the choices for each engine by its position; counts prompts in `arriving`."""
        shares: dict[int, list[EngineRequest]] = {}
        position = 0
        for request in requests:
            if request.index % request.n == 0:
                position = self._choose() if request.engine is None else request.engine
                arriving[position] += 1
                self._arriving[position] += 1
            shares.setdefault(position, []).append(request)
        return shares

    def _submit_shares(
        self, shares: Mapping[int, ListOf[EngineRequest]], emit: Emit, awaited: bool
    ) -> list[Handle]:
        """Submits each share to its engine. Ends all shares if an engine does not admit one."""
        if len(shares) > 1 and not self.refuses_requests:
            # No share starts for nothing, unless an engine fills up during a pause below.
            for position, share in shares.items():
                self.engines[position].check_admission(len(share), share[0].adapter)
        handles: list[Handle] = []
        try:
            for position, share in shares.items():
                engine = self.engines[position]
                handles.append(engine.submit(share, emit, awaited=awaited))
        except BaseException:
            for handle in handles:
                handle.abort()
            raise
        return handles

    def _choose(self) -> int:
        """Returns the position of the least busy engine; the scan starts one further each time."""
        self._start = (self._start + 1) % len(self.engines)
        return least_busy(self._loads(), self._start)

    def _loads(self) -> list[RankLoad]:
        loads = []
        for engine, arriving in zip(self.engines, self._arriving, strict=True):
            running, waiting, kv_usage = engine.recorder.read_load()
            loads.append(RankLoad(engine.in_flight + arriving, waiting, running, kv_usage))
        return loads

    def check_admission(self, sequences: int, adapter: str | None = None) -> None:
        """Checks the room of all ranks together, as the prompts of a request run on all ranks.

        Raises:
            QueueFullError: They have no room. Also raises the errors of `check_accepting`.
        """
        self.check_accepting(sequences)
        if sequences > sum(engine.room(adapter) for engine in self.engines):
            raise QueueFullError(self._queued)

    def _free(self, adapter: str | None) -> int:
        """Returns the room of the emptiest rank, as one rank gets all choices of a prompt."""
        return max(engine.room(adapter) for engine in self.engines)

    def sequences(self) -> Iterator[Sequence]:
        """Yields all unfinished choices, rank by rank."""
        return chain.from_iterable(engine.sequences() for engine in self.engines)

    def interrupt(self, request_ids: Container[str] | None = None, counted: bool = False) -> int:
        """Ends requests on all ranks; see `EngineClient.interrupt`."""
        return sum([engine.interrupt(request_ids, counted) for engine in self.engines])

    def drain(self, refusal: type[EngineError] = DrainingError) -> None:
        """Rejects new requests from now on, with the error `refusal`."""
        super().drain(refusal)
        for engine in self.engines:
            engine.drain(refusal)

    def fail(self) -> None:
        """Fails all unfinished requests of all ranks."""
        for engine in self.engines:
            engine.fail()
