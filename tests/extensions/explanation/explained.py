"""An engine on a virtual clock whose choices are explained, and a profile with quick steps."""

from functools import partial
from typing import Any

import msgspec

from app.core.engine.profile import Profile, read_profile
from app.core.engine.request import EngineRequest, SequenceOutcome, Watch
from app.extensions.explanation.delays import DelayLog
from app.extensions.explanation.explanation import Explanation, explain
from tests.core.engine.harness import Harness


def quick_profile(**limits: Any) -> Profile:
    """The shipped one with other limits."""
    profile = read_profile("qwen3-14b-h100")
    return msgspec.structs.replace(
        profile, engine=msgspec.structs.replace(profile.engine, **limits)
    )


class Explained(Harness):
    """Every request has one choice. `options` are those of the harness."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.delays = DelayLog().attach(self.engine)
        self._requests: dict[str, EngineRequest] = {}
        self._outcomes: dict[str, SequenceOutcome] = {}
        self.observers.append(self._watch)

    def _watch(self, request: EngineRequest) -> Watch:
        self._requests[request.request_id] = request
        return partial(self._outcomes.__setitem__, request.request_id)

    def why(self, request_id: str) -> Explanation:
        """Explains a request by its outcome, final or as of now."""
        request = self._requests[request_id]
        outcome = self._outcomes.get(request_id)
        if outcome is None:
            live = {id(sequence.request): sequence for sequence in self.engine.sequences()}
            sequence = live[id(request)]
            status = "waiting" if sequence.scheduled_s is None else "running"
            outcome = sequence.outcome(status, self.clock.now())
        return explain(request, outcome, self.delays)
