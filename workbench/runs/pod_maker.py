"""Makes the pods of a fleet and their requests, in any process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from workbench.engine.steps import CostModel, Profile, StepCost
from workbench.load.loads import LoadTrace
from workbench.runs.pod import Pod, PodContext
from workbench.runs.prefix_blocks import OfflineRequest
from workbench.runs.tiered_pod import TieredPod

StepCosts = Callable[[Profile], CostModel]
"""Makes the cost model of a pod from a profile."""


class PodMaker:
    """Makes the pods of a fleet."""

    def __init__(self, context: PodContext, step_costs: StepCosts | None, seed: int) -> None:
        """Without `step_costs`, the profile has the costs."""
        self._context = context
        self._step_costs = step_costs
        self._seed = seed
        self._step_cost = StepCost(context.profile.cost)

    def make(
        self, number: int, make_pod: Callable[[PodContext, CostModel, str], Pod] | None = None
    ) -> Pod:
        """Returns the pod with this number, perhaps of another class."""
        context = self._context
        cost: CostModel = self._step_cost.of_another_engine()
        if self._step_costs is not None:
            cost = self._step_costs(context.profile)
        if make_pod is None:
            make_pod = TieredPod if context.tiers else Pod
        return make_pod(context, cost, f"{self._seed}/{number}")


class RequestMaker:
    """Makes the requests of a load."""

    def __init__(
        self, load: LoadTrace, adapters: Sequence[str | None], priorities: Mapping[str, int]
    ) -> None:
        """`adapters` has the adapter of each request, `priorities` the priority of each class.

        Each is empty for a load without this feature.
        """
        self.load = load
        self.adapters = adapters
        self.priorities = priorities

    def make(self, number: int, arrival_s: float) -> OfflineRequest:
        """Returns a request of the load that is to be sent at `arrival_s`."""
        load = self.load
        request = OfflineRequest(
            arrival_s, load.input_tokens[number], load.output_tokens[number], number
        )
        if load.group:
            request.path = load.path(number)
            request.prefix_tokens = load.prefix_tokens[number]
            request.node_tokens = load.node_tokens
        if load.session:
            request.session = load.session[number]
        if load.images:
            request.images = load.images[number]
        if self.adapters:
            request.adapter = self.adapters[number]
        if self.priorities:
            request.priority = self.priorities[load.classes[load.kind[number]]]
        return request
