"""The score of a drill: counts by phase, which repeat, and times, which do not exactly."""

import hashlib
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from app.shared.statistics import quantile
from workbench.drills.drill_file import Drill
from workbench.drills.load import Outcome
from workbench.drills.schedule import Phase, PlayedStep


class PhaseScore(Struct, frozen=True, kw_only=True):
    """Counts of the requests that are due in a phase. All are whole numbers."""

    name: str
    start_s: float
    end_s: float
    sent: int
    answered: int
    """Requests with a whole answer."""
    lost: int
    """Requests with an error, with a broken answer, or without one in time."""
    retried: int
    """Requests that reached pods more than once."""
    router_retries: int | None
    """Attempts that the router has repeated in the phase, also after refused connections; None if
    the router has no counter.
    """
    slow: int
    """Answered requests whose answer took longer than `slow-after`."""
    prompt_tokens: int
    """Prompt tokens of answered requests."""
    cached_tokens: int
    """Prompt tokens of answered requests that a pod found in its cache."""
    reusable_tokens: int
    """Prompt tokens of answered requests that one pod would have cached, if all requests before had
    gone to it.
    """
    errors: dict[str, int]
    """Lost requests by reason."""

    @property
    def cached_share(self) -> float | None:
        """Share of prompt tokens that were cached; None without an answered request."""
        if not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens

    @property
    def kept_share(self) -> float | None:
        """Cached tokens over reusable ones; None if no token is reusable."""
        if not self.reusable_tokens:
            return None
        return self.cached_tokens / self.reusable_tokens


class Figures(Struct, frozen=True, kw_only=True):
    """Counts of a drill. The same drill behind the same router gives the same counts."""

    phases: tuple[PhaseScore, ...]
    total: PhaseScore
    answered_by_pod: tuple[int, ...]
    """Answered requests by the last pod that they reached."""

    @property
    def digest(self) -> str:
        """Hash of all counts."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]


class Margins(Struct, frozen=True, kw_only=True):
    """How far the run was from other counts, in seconds; None where nothing was near.

    A delay of the machine above a margin may change a count.
    """

    failure_s: float | None
    """Shortest time between a step of a failure and the start or end of a request."""
    order_s: float | None
    """Shortest time between the end of a request and the start of another one.

    A router that counts running requests may choose other pods if these change places.
    """
    slow_s: float | None
    """Smallest difference between a latency and `slow-after`."""
    timeout_s: float | None
    """Smallest difference between a latency and `timeout`, of answered requests."""


class Times(Struct, frozen=True, kw_only=True):
    """Measured times in seconds, which differ between runs."""

    p50_s: float | None
    """Median latency of answered requests."""
    p99_s: float | None
    max_send_late_s: float
    """Greatest delay of a request after its time."""
    max_step_late_s: float
    """Greatest delay of a step after its time."""
    margins: Margins


def score(
    drill: Drill,
    phases: Sequence[Phase],
    outcomes: Sequence[Outcome],
    retry_counts: Sequence[int] = (),
) -> Figures:
    """Counts the outcomes by phase.

    `retry_counts` has the router's counter at the start of each phase, and at the end; it is empty
    for a router without one.
    """
    slow_after_s = drill.slow_after_s
    scores = []
    for number, phase in enumerate(phases):
        due = [outcome for outcome in outcomes if phase.start_s <= outcome.due_s < phase.end_s]
        retries = None
        if retry_counts:
            retries = retry_counts[number + 1] - retry_counts[number]
        scores.append(_count(phase, due, slow_after_s, retries))
    all_retries = retry_counts[-1] - retry_counts[0] if retry_counts else None
    whole = Phase("total", 0.0, drill.duration_s)
    counts = Counter(outcome.pods[-1] for outcome in outcomes if not outcome.error and outcome.pods)
    return Figures(
        phases=tuple(scores),
        total=_count(whole, outcomes, slow_after_s, all_retries),
        answered_by_pod=tuple(counts[pod] for pod in range(drill.pods)),
    )


def _count(
    phase: Phase, outcomes: Sequence[Outcome], slow_after_s: float, router_retries: int | None
) -> PhaseScore:
    answered = [outcome for outcome in outcomes if not outcome.error]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error)
    return PhaseScore(
        name=phase.name,
        start_s=phase.start_s,
        end_s=phase.end_s,
        sent=len(outcomes),
        answered=len(answered),
        lost=len(outcomes) - len(answered),
        retried=sum(1 for outcome in outcomes if len(outcome.pods) > 1),
        router_retries=router_retries,
        slow=sum(1 for outcome in answered if outcome.latency_s > slow_after_s),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in answered),
        cached_tokens=sum(outcome.cached_tokens for outcome in answered),
        reusable_tokens=sum(outcome.reusable_tokens for outcome in answered),
        errors=dict(sorted(errors.items())),
    )


def measure(drill: Drill, outcomes: Sequence[Outcome], played: Sequence[PlayedStep]) -> Times:
    """Returns the times of a run."""
    latencies_s = sorted(outcome.latency_s for outcome in outcomes if not outcome.error)
    p50_s = None
    p99_s = None
    if latencies_s:
        p50_s = quantile(latencies_s, 0.5)
        p99_s = quantile(latencies_s, 0.99)
    return Times(
        p50_s=p50_s,
        p99_s=p99_s,
        max_send_late_s=max((outcome.sent_s - outcome.due_s for outcome in outcomes), default=0.0),
        max_step_late_s=max((step.end_late_s for step in played), default=0.0),
        margins=Margins(
            failure_s=min(_failure_margins(outcomes, played), default=None),
            order_s=_order_margin(outcomes),
            slow_s=min(
                (abs(latency_s - drill.slow_after_s) for latency_s in latencies_s), default=None
            ),
            timeout_s=min((drill.timeout_s - latency_s for latency_s in latencies_s), default=None),
        ),
    )


def _failure_margins(outcomes: Sequence[Outcome], played: Sequence[PlayedStep]) -> Iterator[float]:
    """Yields the times between a step and the start or end of a request at its pod.

    Ends that a step causes, and ends of lost requests, do not count.
    """
    for step in played:
        begin_s = step.step.time_s + step.begin_late_s
        end_s = step.step.time_s + step.end_late_s
        for outcome in outcomes:
            if step.step.pod not in outcome.pods:
                continue
            yield _distance(outcome.sent_s, begin_s, end_s)
            if not outcome.error and outcome.end_s < begin_s:
                yield begin_s - outcome.end_s


def _order_margin(outcomes: Sequence[Outcome]) -> float | None:
    """Returns the shortest time between the end of a request and the start of another one."""
    starts_s = sorted(outcome.sent_s for outcome in outcomes)
    margins_s = []
    for outcome in outcomes:
        place = bisect(starts_s, outcome.end_s)
        # The neighbors are starts of other requests, unless the request took no time at all.
        for neighbor_s in starts_s[max(0, place - 1) : place + 1]:
            if neighbor_s != outcome.sent_s:
                margins_s.append(abs(outcome.end_s - neighbor_s))
    return min(margins_s, default=None)


def _distance(time_s: float, begin_s: float, end_s: float) -> float:
    if time_s < begin_s:
        return begin_s - time_s
    return max(0.0, time_s - end_s)


def differences(figures: Figures, expected: Figures) -> list[str]:
    """Returns a line for each count that differs between two runs."""
    lines = []
    names = [phase.name for phase in figures.phases]
    if names != [phase.name for phase in expected.phases]:
        return ["the phases differ: the reports are of different drills"]
    pairs = zip((*figures.phases, figures.total), (*expected.phases, expected.total), strict=True)
    for phase, earlier in pairs:
        for field in PhaseScore.__struct_fields__:
            value = getattr(phase, field)
            earlier_value = getattr(earlier, field)
            if value != earlier_value:
                lines.append(
                    f"{phase.name}, at {phase.start_s:g} s: {field} {earlier_value} -> {value}"
                )
    if figures.answered_by_pod != expected.answered_by_pod:
        lines.append(
            f"answered by pod: {list(expected.answered_by_pod)} -> {list(figures.answered_by_pod)}"
        )
    return lines
