"""Simulates changes of a measured fleet, and compares them with today. Start at `Decider`.

A difference counts if it is larger than the error of the simulation on this very fleet, which
`study compare` has found. Draws of the same workload must not differ as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import Struct

from config import ConfigError, UsageError
from config.files import read_whole
from config.flags import FlagTable
from config.untrusted import UntrustedDataError, decode_untrusted
from vllm_facts.devices import DEVICES
from workbench.engine.steps import Profile
from workbench.load.progress import ignore_progress
from workbench.load.study_folder import COMPARISON_FILE
from workbench.plan.change_flags import MAX_REQUESTS
from workbench.plan.list_prices import LIST_PRICES
from workbench.runs.job import Job
from workbench.runs.job_spec import JobSpec
from workbench.study.calibration import NAMES as FACTOR_NAMES
from workbench.study.calibration import scaled_profile
from workbench.study.compare_command import (
    PROFILE_FILE,
    fleet_flags,
    make_study_job,
)
from workbench.study.folder import Distribution, MeasuredWindow, Study
from workbench.study.quantities import E2E, QUEUE, TPOT, TTFT
from workbench.study.simulated import (
    Segment,
    SimulatedWindow,
    mean_level,
    mean_of,
    segments_of,
    simulate_study,
    simulated_pods,
)
from workbench.study.what_if import Change
from workbench.study.window_comparison import Comparison, means_by_window, shares_below

QUANTITIES = (TTFT, TPOT, E2E, QUEUE)
"""Latencies that are compared."""
SHARES_OF = (TTFT, TPOT, E2E)
MEASURED_PERCENTILES = (0.9, 0.99)
"""Shares of requests; the bounds of buckets that hold at least these shares are shown."""
OTHER_SEEDS = 2
"""Further draws of today's load, whose spread is the least error."""
MAX_UNFINISHED = 0.05
"""Share of the requests that may end later than today; above, the fleet cannot keep up."""
LEAST_ERROR = 0.02
"""Error below which no simulation is trusted, however close it was."""
MAX_SIMULATED = 5_000_000
"""Most requests of a simulated pod."""
UNCHANGED = Change(text="today")


class Effect(Struct, frozen=True, kw_only=True):
    """A mean latency after a change; seconds and shares."""

    quantity: str
    today_s: float
    """Measured mean of the present fleet; the simulated one where there is no measurement."""
    mean_s: float
    """The mean of today, times the ratio of the simulated means."""
    simulated_today_s: float
    simulated_s: float
    difference: float
    """Difference of the simulated means as a share."""
    error: float | None
    """Largest difference that means nothing; None if it is not known."""

    @property
    def is_distinguishable(self) -> bool:
        """Returns whether the difference is larger than the error."""
        return self.error is None or abs(self.difference) > self.error


class Share(Struct, frozen=True, kw_only=True):
    """Requests with a latency up to a bound of the measured buckets."""

    quantity: str
    bound_s: float
    measured: float
    simulated: float


class Row(Struct, frozen=True, kw_only=True):
    """A fleet and its load, simulated."""

    name: str
    pods: float
    """Mean number over time."""
    devices: float
    """Mean number of accelerators."""
    price_per_hour: float | None
    listed_device: str
    """Device whose list price counts; empty for a price of the user."""
    rate_per_s: float
    effects: list[Effect]
    shares: list[Share]
    kv_usage: float
    running: float
    ended: float
    """Share of the arrived requests that ended within the study."""
    keeps_up: bool
    ttft_by_window: list[float | None]
    engine: str
    """Profile of the engine, and how it was checked."""
    is_computed: bool
    """True if the engine has a computed profile, as no such engine was measured."""

    @property
    def is_distinguishable(self) -> bool:
        """Returns whether a latency differs, or requests pile up."""
        return not self.keeps_up or any(effect.is_distinguishable for effect in self.effects)

    def is_worse(self, max_rise: float) -> bool:
        """Returns whether a latency rises too much, or requests pile up."""
        return not self.keeps_up or bool(self.rises(max_rise))

    def rises(self, max_rise: float) -> list[Effect]:
        """Returns the latencies that rise by more than their error and a share.

        The queue is a part of the TTFT and does not count by itself.
        """
        return [
            effect
            for effect in self.effects
            if effect.quantity != QUEUE and effect.difference > max(effect.error or 0.0, max_rise)
        ]


def read_comparison(study: Study) -> Comparison | None:
    """Returns the comparison of a study with a simulation; None if there is none.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = study.folder / COMPARISON_FILE
    if not path.is_file():
        return None
    try:
        return decode_untrusted(read_whole(path), type=Comparison)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"{path}: {error}") from None


def compared_flags(study: Study, comparison: Comparison | None) -> FlagTable:
    """Returns the flags of `simulate` with which a study was compared."""
    if comparison is None:
        return {}
    if comparison.constants:
        return {**comparison.flags, "profile": str(study.folder / PROFILE_FILE)}
    return comparison.flags


class Decider:
    """Simulates today's fleet and its changes under the workload of a study."""

    def __init__(
        self,
        study: Study,
        engine: JobSpec,
        *,
        comparison: Comparison | None,
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        """The fields that are written in `engine` replace flags of the fleet.

        Raises:
            ConfigError: The fleet cannot be simulated.
        """
        self._study = study
        self._engine = engine
        self._max_requests = max_requests
        self._comparison = comparison
        self._job, _ = make_study_job(study, engine, calibrates=False)
        self._segments = segments_of(study)
        self.simulations = 0
        self._today: dict[bool, list[SimulatedWindow]] = {}
        """Today's fleet by whether its profile is computed."""
        self._draw_errors: dict[str, float] = {}

    @property
    def most_pods(self) -> int:
        """The largest number of pods at a time."""
        return max(segment.pods for segment in self._segments)

    def job_of(self, change: Change) -> Job:
        """Returns the job of a change.

        Raises:
            UsageError: The change does not go with the fleet.
        """
        try:
            return self._make_job(change)
        except ConfigError as error:
            raise UsageError(f"--what-if {change.text!r}: {error}") from None

    def _make_job(self, change: Change) -> Job:
        engine = self._engine
        if change.is_computed:
            engine = self._computed_engine()
        engine = engine.updated(change.engine)
        if change.prefill_share:
            pods = change.pods or self.most_pods
            if pods < 2:
                raise UsageError("prefill-share requires two pods")
            prefill_pods = min(pods - 1, max(1, round(change.prefill_share * pods)))
            engine = engine.changed(prefill_pods=prefill_pods, decode_pods=pods - prefill_pods)
        job, _ = make_study_job(
            self._study,
            engine,
            calibrates=False,
            has_measured_blocks=not change.is_computed,  # a change may change their number
        )
        has_roles = job.plan.disaggregation is not None
        if change.pods is not None and has_roles and not change.prefill_share:
            raise UsageError("pods: the pods have roles; add prefill-share=SHARE")
        self._check_requests(change, has_roles=has_roles)
        return self._with_factors(job) if change.is_computed else job

    def _check_requests(self, change: Change, *, has_roles: bool) -> None:
        """Raises UsageError for a load that is too large: at least one pod is simulated."""
        windows = self._study.workload.windows
        count = change.rate_factor * sum(sum(window.arrivals) for window in windows)
        if not has_roles:
            count /= change.pods or self.most_pods
        if count > MAX_SIMULATED:
            raise UsageError(
                f"{count:,.0f} requests would be simulated; the limit is {MAX_SIMULATED:,}"
            )

    def _computed_engine(self) -> JobSpec:
        """Returns the engine of today's fleet for a profile that is computed from data sheets."""
        engine = self._engine.without("profile")
        if "device" in fleet_flags(self._study) or engine.has("device"):
            return engine
        profile = self._job.plan.profile
        device = _device(self._job)
        if device not in DEVICES or self._is_calibrated():
            raise UsageError(
                "the device and the model of the pods are not known; name them with --device and"
                " --model, or in fleet.yaml"
            )
        return engine.changed(device=device, model_config=profile.model)

    def _is_calibrated(self) -> bool:
        return self._comparison is not None and bool(self._comparison.constants)

    def _with_factors(self, job: Job) -> Job:
        """Returns a job whose computed profile has the factors of the calibration, if any."""
        if self._comparison is None or not self._comparison.constants:
            return job
        constants = self._comparison.constants
        factors = [constants.get(name, 1.0) for name in FACTOR_NAMES]
        profile = scaled_profile(job.plan.profile, factors)
        return replace(job, plan=replace(job.plan, profile=profile))

    def _simulate(self, job: Job, change: Change) -> list[SimulatedWindow]:
        self.simulations += 1
        return simulate_study(
            self._study_at(change.rate_factor),
            job,
            segments=self._segments_of(change),
            max_requests=self._max_requests,
            progress=ignore_progress,
        )

    def _study_at(self, factor: float) -> Study:
        if factor == 1:
            return self._study
        windows = tuple(
            msgspec.structs.replace(
                window,
                arrivals=tuple(count * factor for count in window.arrivals),
                rate_per_s=window.rate_per_s * factor,
                requests=window.requests * factor,
            )
            for window in self._study.workload.windows
        )
        workload = msgspec.structs.replace(self._study.workload, windows=windows)
        return msgspec.structs.replace(self._study, workload=workload)

    def _segments_of(self, change: Change) -> list[Segment]:
        if change.pods is None and not change.prefill_share:
            return self._segments
        pods = change.pods or self.most_pods
        return [Segment(first=0, last=len(self._study.workload.windows), pods=pods)]

    def today(self, *, is_computed: bool = False) -> list[SimulatedWindow]:
        """Returns the simulated windows of today's fleet.

        A computed profile is the reference for changes of device, model, or format.
        """
        if is_computed not in self._today:
            job = self._job
            if is_computed:
                job, _ = make_study_job(self._study, self._computed_engine(), calibrates=False)
                job = self._with_factors(job)
            self._today[is_computed] = self._simulate(job, UNCHANGED)
        return self._today[is_computed]

    def draw_errors(self) -> dict[str, float]:
        """Returns the largest difference of each mean between draws of today's load."""
        if not self._draw_errors:
            today = self.today()
            self._draw_errors = dict.fromkeys(QUANTITIES, 0.0)
            for number in range(1, OTHER_SEEDS + 1):
                plan = replace(self._job.plan, seed=self._job.plan.seed + number)
                other = self._simulate(replace(self._job, plan=plan), UNCHANGED)
                for name in QUANTITIES:
                    mean = _mean(today, name)
                    difference = abs((_mean(other, name) or 0.0) / mean - 1) if mean else 0.0
                    self._draw_errors[name] = max(self._draw_errors[name], difference)
        return self._draw_errors

    def errors(self) -> Mapping[str, float]:
        """Returns the error of each latency: of the comparison, at least that of draws.

        The queue is a part of the TTFT, so its error is at least that of the TTFT, in seconds.
        """
        if self._comparison is None or not self._comparison.parts:
            return {}
        rows = {row.quantity: row.window_error for row in self._comparison.parts[-1].rows}
        draws = self.draw_errors()
        errors = {
            name: max(rows[name], draws[name], LEAST_ERROR) for name in QUANTITIES if name in rows
        }
        ttft_s = _mean(self.today(), TTFT)
        queue_s = _mean(self.today(), QUEUE)
        if ttft_s and queue_s and TTFT in errors and QUEUE in errors:
            errors[QUEUE] = max(errors[QUEUE], errors[TTFT] * ttft_s / queue_s)
        return errors

    def share_errors(self) -> dict[str, float]:
        """Returns the largest error of the share of requests up to a bound, for each latency."""
        if self._comparison is None or not self._comparison.parts:
            return {}
        rows = self._comparison.parts[-1].rows
        return {row.quantity: row.bucket_error for row in rows if row.quantity in SHARES_OF}

    def row(self, change: Change) -> Row:
        """Simulates a change, and compares it with today.

        Raises:
            UsageError: The change does not go with the fleet.
        """
        job = self.job_of(change)
        reference = self.today(is_computed=change.is_computed)
        windows = reference if change is UNCHANGED else self._simulate(job, change)
        errors = self.errors()
        effects = []
        for name in QUANTITIES:
            simulated_s = _mean(windows, name)
            simulated_today_s = _mean(reference, name)
            if simulated_s is None or not simulated_today_s:
                continue
            today_s = self._measured_mean(name) or simulated_today_s
            effects.append(
                Effect(
                    quantity=name,
                    today_s=today_s,
                    mean_s=today_s * simulated_s / simulated_today_s,
                    simulated_today_s=simulated_today_s,
                    simulated_s=simulated_s,
                    difference=simulated_s / simulated_today_s - 1,
                    error=errors.get(name),
                )
            )
        ended = self._ended(windows, job, change)
        pods = self._mean_pods(change)
        devices = pods * job.plan.profile.devices
        price = job.judgement.gpu_hour_price
        listed_device = ""
        if price is None and _device(job) in LIST_PRICES:
            listed_device = _device(job)
            price = LIST_PRICES[listed_device].price
        profile = job.plan.profile
        return Row(
            name=change.text,
            pods=pods,
            devices=devices,
            price_per_hour=None if price is None else price * devices,
            listed_device=listed_device,
            rate_per_s=self.measured_rate * change.rate_factor,
            effects=effects,
            shares=self._shares(windows),
            kv_usage=mean_level([window.kv_usage for window in windows]) or 0.0,
            running=mean_level([window.running for window in windows]) or 0.0,
            ended=ended,
            keeps_up=ended > (1 - MAX_UNFINISHED) * self._ended(reference, job, UNCHANGED),
            ttft_by_window=means_by_window([window.latencies for window in windows], TTFT),
            engine=_engine_text(profile),
            is_computed=change.is_computed,
        )

    @property
    def measured_rate(self) -> float:
        """Mean number of requests per second of the study."""
        windows = self._study.workload.windows
        seconds = sum(window.seconds for window in windows)
        return sum(sum(window.arrivals) for window in windows) / seconds

    def _measured_mean(self, name: str) -> float | None:
        return mean_of(_of(self._study.measured.windows, name))

    def _ended(self, windows: Sequence[SimulatedWindow], job: Job, change: Change) -> float:
        """Returns the share of requests that ended before the end of the last window."""
        workload = self._study_at(change.rate_factor).workload
        arrived = 0.0
        for segment in self._segments_of(change):
            part = workload.windows[segment.first : segment.last]
            count = sum(sum(window.arrivals) for window in part)
            if count and job.plan.disaggregation is None:
                count *= simulated_pods(segment.pods, count, self._max_requests) / segment.pods
            arrived += count
        ended = sum(window.latencies[E2E].count for window in windows)
        return min(1.0, ended / arrived) if arrived else 1.0

    def _mean_pods(self, change: Change) -> float:
        if change.pods is not None:
            return float(change.pods)
        seconds = 0.0
        total = 0.0
        for segment in self._segments_of(change):
            for window in self._study.workload.windows[segment.first : segment.last]:
                seconds += window.seconds
                total += segment.pods * window.seconds
        return total / seconds

    def _shares(self, windows: Sequence[SimulatedWindow]) -> list[Share]:
        shares = []
        for name in SHARES_OF:
            measured = _of(self._study.measured.windows, name)
            bounds = sorted(
                {high for each in measured for _, high, _ in each.buckets if high is not None}
            )
            shown = _bounds_of(bounds, shares_below(measured, bounds))
            simulated = _of(windows, name)
            for bound, known, guess in zip(
                shown,
                shares_below(measured, shown),
                shares_below(simulated, shown),
                strict=True,
            ):
                shares.append(Share(quantity=name, bound_s=bound, measured=known, simulated=guess))
        return shares


def _bounds_of(bounds: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Returns the least bounds with at least the shares of `MEASURED_PERCENTILES`."""
    found: list[float] = []
    for wanted in MEASURED_PERCENTILES:
        for bound, share in zip(bounds, shares, strict=True):
            if share >= wanted:
                if bound not in found:
                    found.append(bound)
                break
    return found


def _of(
    windows: Sequence[SimulatedWindow] | Sequence[MeasuredWindow], name: str
) -> list[Distribution]:
    return [window.latencies[name] for window in windows if name in window.latencies]


def _mean(windows: Sequence[SimulatedWindow], name: str) -> float | None:
    return mean_of([window.latencies[name] for window in windows])


def _device(job: Job) -> str:
    """Returns the name of the device of a job, as price lists have it."""
    if job.device:
        return job.device.lower()
    return job.plan.profile.device.partition(" ")[0].lower()


def _engine_text(profile: Profile) -> str:
    text = f"{profile.model} on {profile.device}"
    return f"{text}: {profile.checked}" if profile.checked else text
