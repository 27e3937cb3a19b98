"""The simulated engine that hands over KV caches to other engines, and takes over theirs.

Start with `HandoffEngine`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as ListOf
from typing import Any, cast

from msgspec.structs import replace

from app.core.engine.engine import Engine, EngineParts
from app.core.engine.outputs import Emit
from app.core.engine.profile import Profile
from app.core.engine.request import EngineRequest, Reply
from app.core.engine.sections import EngineSections
from app.core.engine.sequence import Handle
from app.core.engine.step_cost import CostModel
from app.core.engine.step_executor import StepExecutor
from app.core.engine.stepped_sequence import SteppedSequence
from app.extensions.handoff.handoffs import Handoffs, Peering
from app.extensions.handoff.sequences import HandoffPart, SteppedHandoff, TimedHandoff

log = logging.getLogger(__name__)


class HandoffEngine(Engine):
    """An `Engine` whose prompts may come from other engines, and go to them.

    Of several choices, the first one hands over and takes over the blocks of the first prompt.
    """

    def __init__(
        self,
        sections: EngineSections,
        parts: EngineParts,
        profile: Profile | None = None,
        cost: CostModel | None = None,
        *,
        peering: Peering,
    ) -> None:
        super().__init__(sections, parts, profile, cost)
        self.handoffs = Handoffs(
            sections.kvcache, self.executor, self.wheel, parts=parts, peering=peering
        )
        self._plain_sequence = self._sequence
        self._handoff_sequence: type[HandoffPart] = TimedHandoff
        if parts.cache is not None and peering.store is not None:
            parts.cache.store = peering.store
        if isinstance(self.executor, StepExecutor):
            self._handoff_sequence = SteppedHandoff
            self._start_load = self.executor.scheduler.on_fetch
            self.executor.scheduler.on_fetch = self._fetch
        self._sequence = self._new_sequence

    def run(
        self,
        requests: ListOf[EngineRequest],
        replies: ListOf[Reply],
        emit: Emit,
        awaited: bool = False,
    ) -> Handle:
        """Runs a request with known replies; see `EngineClient.submit`."""
        dialect = self.handoffs.dialect
        if requests[0].remote_prefill and not dialect.counts_transfers:
            # The core counts each remote prefill in vLLM's metrics of NixlConnector.
            requests = [replace(request, remote_prefill=False) for request in requests]
        first = requests[0]
        for problem in self.handoffs.problems(first):
            log.warning(
                "incomplete kv_transfer_params in request %s: %s", first.request_id, problem
            )
        if not self._is_handoff(first):
            return super().run(requests, replies, emit, awaited)
        if not self.refuses_requests:  # a request that is rejected here may come again
            self.check_admission(len(requests), first.adapter)
        prepared = [self._prepare(request) for request in requests]
        handle = super().run(prepared, replies, emit, awaited)
        for sequence in handle.choices:
            if isinstance(sequence, HandoffPart) and sequence.remote and not sequence.over:
                sequence.expect()
        return handle

    def _search(self, requests: ListOf[EngineRequest], emit: Emit) -> Handle:
        """Searches here: each step of the beams would hand over the prompt again."""
        return super()._search([_alone(request) for request in requests], emit)

    def reply_at_once(self, request: EngineRequest, reply: Reply, emit: Emit | None = None) -> bool:
        """See `EngineClient`. A handoff takes time."""
        return not self._is_handoff(request) and super().reply_at_once(request, reply, emit)

    def _is_handoff(self, request: EngineRequest) -> bool:
        return self.handoffs.takes_part(request)

    def _prepare(self, request: EngineRequest) -> EngineRequest:
        if request.index:
            return _alone(request)
        if self.handoffs.dialect.transfer_id(request):
            self.handoffs.announce(request)
        if request.remote_prefill:
            request = self.handoffs.take_back(request)
        return request

    def _new_sequence(self, request: EngineRequest, reply: Reply, handle: Handle) -> Any:
        if not self._is_handoff(request):
            return self._plain_sequence(request, reply, handle)
        return self._handoff_sequence(self.handoffs, request, reply, handle)

    def _fetch(self, sequence: SteppedSequence) -> None:
        if sequence.loaded and self._start_load is not None:  # from the tiers of this pod
            self._start_load(sequence)
            return
        cast("SteppedHandoff", sequence).fetch()


def _alone(request: EngineRequest) -> EngineRequest:
    """Returns the request without its handoffs."""
    return replace(request, address=None, source=None, remote_prefill=False)
