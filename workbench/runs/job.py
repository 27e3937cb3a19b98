"""A job of the commands simulate and plan: a load, the fleet that gets it, and its objectives."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from config import ConfigError
from workbench.engine.costs import DeviceWatts, EngineOptions, Situation, energy_of
from workbench.load.loads import LoadTrace
from workbench.load.priorities import assign_classes
from workbench.load.progress import Progress, ignore_progress, progress_bar
from workbench.load.synthetic import Recipe, draw_load
from workbench.runs.agent_traces import limit_conversations
from workbench.runs.engine_limits import max_request_tokens
from workbench.runs.goodput import check_classes
from workbench.runs.images import check_encoder
from workbench.runs.intervals import Errors, SlowedCosts, errors_of
from workbench.runs.pod import Watch
from workbench.runs.simulation import SimulationOutcome, SimulationPlan, simulate
from workbench.runs.summary import Judgement, RunSummary, class_figures, summarize
from workbench.runs.sweeps import IN_FLIGHT, PODS, PREFILL_PODS, RATE
from workbench.runs.traces import TraceOptions, read_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A load and the fleet that gets it; either `trace` or `recipe` is None."""

    profile_name: str
    plan: SimulationPlan
    trace: Path | None
    recipe: Recipe | None
    judgement: Judgement
    model: str = ""
    """Name or path of the model of profile auto."""
    device: str = ""
    """Name of the device of profile auto."""
    options: EngineOptions = EngineOptions()
    """Options of the engine of profile auto."""
    situation: Situation | None = None
    """Facts that the errors of profile auto depend on."""
    trace_options: TraceOptions = TraceOptions()
    """How to read the trace."""
    conversations: int | None = None
    """Most conversations of an agent trace at a time; None is no limit."""
    node_devices: int = 1
    """Devices that are rented together."""
    watts: DeviceWatts | None = None
    """Power of a device; None leaves energy out."""

    def load(self, progress: Progress = ignore_progress) -> LoadTrace:
        """Reads or draws the load.

        Raises:
            ConfigError: The load has a mistake, or does not fit the plan.
        """
        if self.recipe is not None:
            max_tokens = max_request_tokens(self.plan.profile.engine)
            load = draw_load(self.recipe, max_tokens, progress)
        else:
            assert self.trace is not None
            draw = msgspec.structs.replace(
                self.trace_options,
                max_tokens=max_request_tokens(self.plan.profile.engine),
                seed=self.plan.seed,
            )
            load = read_trace(self.trace, progress, draw)
            self._limit_conversations(load)
        if self.plan.priorities:
            assign_classes(load, self.plan.priorities, self.plan.seed)
        self._check_lengths(load)
        check_encoder(load, self.plan.profile)
        check_classes(self.judgement.limits or {}, load)
        self._check_cold_start(load)
        return load

    def rented(self, devices: int) -> int:
        """Returns the devices that are paid for if some are used: nodes are rented as a whole."""
        return -(-devices // self.node_devices) * self.node_devices

    def _limit_conversations(self, load: LoadTrace) -> None:
        if self.conversations is None:
            return
        if not load.conversation_starts:
            raise ConfigError(f"--conversations: {load.origin} is not an agent trace")
        limit_conversations(load, self.conversations)

    def _check_lengths(self, load: LoadTrace) -> None:
        limits = self.plan.profile.engine
        max_tokens = max_request_tokens(limits)
        sizes = zip(load.input_tokens, load.output_tokens, strict=True)
        for number, (input_tokens, output_tokens) in enumerate(sizes):
            if input_tokens + output_tokens > max_tokens:
                rule = "the capacity of cache and budget"
                if max_tokens == limits.max_model_len:
                    rule = "max-model-len"
                raise ConfigError(
                    f"{load.row(number)}: the sum of input_tokens {input_tokens} and"
                    f" output_tokens {output_tokens} must not exceed {rule} ({max_tokens} tokens)"
                )

    def _check_cold_start(self, load: LoadTrace) -> None:
        autoscaling = self.plan.autoscaling
        # How long sessions take, and clients with few places, depends on answers.
        if autoscaling is None or load.session or self.plan.in_flight is not None:
            return
        length_s = load.arrival_s[-1] - load.arrival_s[0]
        if autoscaling.cold_start_s >= length_s:
            raise ConfigError(
                f"--cold-start ({autoscaling.cold_start_s:g} s) must be shorter than the load"
                f" ({length_s:.6g} s)"
            )

    def run(
        self,
        load: LoadTrace,
        progress: Progress = ignore_progress,
        watch: Watch | None = None,
        processes: int = 1,
    ) -> tuple[SimulationOutcome, RunSummary]:
        """Simulates `load`; returns the times of its requests, and the figures.

        See `simulate` for the arguments.
        """
        outcome = simulate(load, self.plan, progress, watch, processes)
        summary = summarize(outcome, self.profile_name, self.judgement)
        if self.plan.tiers:
            summary = msgspec.structs.replace(summary, tiers=tuple(outcome.tier_uses))
        if self.plan.priorities:
            summary = msgspec.structs.replace(summary, classes=class_figures(outcome))
        if self.watts is not None:
            energy = energy_of(
                self.watts,
                running=summary.running.mean,
                gpu_hours=summary.gpu_hours,
                output_tokens=summary.output_tokens,
            )
            summary = msgspec.structs.replace(summary, energy=energy)
        errors = self.errors(summary)
        if errors is not None:
            intervals = errors.intervals(
                ttft_s=summary.ttft_s.mean or 0.0, e2e_s=summary.e2e_s.mean or 0.0
            )
            summary = msgspec.structs.replace(summary, intervals=intervals)
        return outcome, summary

    def errors(self, summary: RunSummary) -> Errors | None:
        """Returns the errors of a run; None without a computed profile."""
        if self.situation is None:
            return None
        return errors_of(
            self.situation,
            concurrency=summary.running.mean,
            input_tokens=summary.input_tokens / summary.requests,
            output_tokens=summary.output_tokens / summary.requests,
        )

    def slowed(self, factor: float) -> Job:
        """Returns the job on engines whose steps take `factor` times as long."""
        costs = SlowedCosts(self.plan.step_costs, factor)
        return replace(self, plan=replace(self.plan, step_costs=costs))

    def with_value(self, name: str, value: float) -> Job:
        """Returns the job with another value of a setting of sweeps."""
        if name == RATE:
            assert self.recipe is not None
            return replace(self, recipe=replace(self.recipe, rate=value))
        return replace(self, plan=self._plan_with(name, int(value)))

    def _plan_with(self, name: str, count: int) -> SimulationPlan:
        plan = self.plan
        if name == PODS:
            return replace(plan, pods=count)
        if name == IN_FLIGHT:
            return replace(plan, in_flight=count)
        assert plan.disaggregation is not None
        if not count:
            return replace(plan, disaggregation=None)
        split = replace(plan.disaggregation, prefill_pods=count, decode_pods=plan.pods - count)
        return replace(plan, disaggregation=split)

    def table_heading(self, swept: str) -> str:
        """Returns the heading of a table: profile, load and fleet.

        `swept` is the setting of a sweep, whose value is left out; empty for a single run.
        """
        if self.recipe is None:
            load = f"trace {self.trace}"
        else:
            load = f"drawn load, {self.recipe}, seed {self.recipe.seed}"
            if swept == RATE:
                load = load.replace(f" at {self.recipe.rate:g}/s", "", 1)
        if self.plan.in_flight is not None and swept != IN_FLIGHT:
            load += f", {self.plan.in_flight} in flight at most"
        return "; ".join([f"{self.profile_name}: {load}", *self._fleet_texts(swept)])

    def title(self, load: LoadTrace) -> str:
        """Returns the title of a picture or page."""
        name = "drawn" if self.trace is None else self.trace.name
        run = f"{self.profile_name}: {len(load):,} requests, {name}"
        return ", ".join([run, *self._fleet_texts()])

    def _fleet_texts(self, swept: str = "") -> list[str]:
        """Returns the text about the fleet; none for a single pod."""
        plan = self.plan
        if plan.autoscaling is not None:
            return [f"pods by {plan.autoscaling.policy_text}, {plan.policy}"]
        text = ""
        if swept == PODS:
            text = f"pods, {plan.policy}"
        elif plan.pods > 1:
            text = f"{plan.pods} pods, {plan.policy}"
        split = plan.disaggregation
        if split is not None:
            if swept != PREFILL_PODS:
                text += f", {split.prefill_pods} of them prefill"
            text += f", {split}"
        return [text] if text else []


def read_load(job: Job) -> LoadTrace:
    """Returns the load; shows progress and rows that are left out."""
    if job.recipe is not None:
        bar = progress_bar(sys.stderr, "drawn", round(job.recipe.expected_requests), "requests")
    else:
        assert job.trace is not None
        size = job.trace.stat().st_size if job.trace.is_file() else 0
        bar = progress_bar(sys.stderr, "read", size, "bytes")
    with bar as progress:
        load = job.load(progress)
    if load.left_out:
        print(
            f"{load.origin}: {load.left_out:,} rows without an answer were skipped",
            file=sys.stderr,
        )
    return load
