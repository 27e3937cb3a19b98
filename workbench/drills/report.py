"""The report of a drill: text, JSON and a picture."""

from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from config import ConfigError
from config.declaration import install, missing
from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.drills.drill_file import Drill, Kill
from workbench.drills.load import Outcome
from workbench.drills.schedule import phases_of
from workbench.drills.score import Figures, PhaseScore, Times
from workbench.load.output_files import write_results
from workbench.load.plotting import BLUE, GREY, ORANGE, RED, Axes, picture_file
from workbench.load.tables import markdown

HEADINGS = (
    "phase",
    "from",
    "sent",
    "answered",
    "lost",
    "retried",
    "by router",
    "slow",
    "cached",
    "kept",
)
CACHE_BUCKETS = 60
"""Most parts of the drill in the picture of the cache."""


class DrillReport(Struct, frozen=True, kw_only=True):
    """A played drill, as in JSON."""

    drill: Drill
    router: str
    figures: Figures
    digest: str
    """Hash of the figures."""
    times: Times
    requests: Sequence[Outcome]


class _EarlierReport(Struct):
    figures: Figures


def read_figures(path: Path) -> Figures:
    """Returns the figures of an earlier report.

    Raises:
        ConfigError: The file cannot be read, or is not a report.
    """
    try:
        return decode_untrusted(read_whole(path), type=_EarlierReport).figures
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UntrustedDataError as error:
        raise ConfigError(f"{path} is not a drill report: {error}") from None


def print_report(report: DrillReport, options: Namespace) -> None:
    """Prints the report, and writes its files."""
    lines = list(_lines(report))
    draws = options.png is not None
    if draws and missing("fleet"):
        lines.append(f"no picture was drawn: {install('fleet')}")
        draws = False
    if draws:
        lines.append(f"picture: {options.png}")
    with write_results(options.json, report, "\n".join(lines)):
        if draws:
            draw_drill(report, options.png)


def _lines(report: DrillReport) -> Iterator[str]:
    figures = report.figures
    drill = report.drill
    yield (
        f"{figures.total.sent} requests in {drill.duration} to {drill.pods} pods behind"
        f" {report.router}, seed {drill.seed}"
    )
    yield _table(figures)
    for error, count in Counter(figures.total.errors).most_common():
        yield f"lost: {count} with {error}"
    yield f"figures: {report.digest} (equal counts have equal hashes)"
    times = report.times
    yield (
        f"latency: p50 {_seconds(times.p50_s)}, p99 {_seconds(times.p99_s)}; requests were sent at"
        f" most {_seconds(times.max_send_late_s)} late, failures played at most"
        f" {_seconds(times.max_step_late_s)} late"
    )
    margins = times.margins
    yield (
        f"margins: {_seconds(margins.failure_s)} between a request and a failure,"
        f" {_seconds(margins.order_s)} between the end of a request and the start of another,"
        f" {_seconds(margins.slow_s)} to slow-after, {_seconds(margins.timeout_s)} to timeout"
    )


def _table(figures: Figures) -> str:
    rows: list[Sequence[str]] = [HEADINGS]
    for phase in (*figures.phases, figures.total):
        rows.append(_row(phase))
    return markdown(rows)


def _row(phase: PhaseScore) -> Sequence[str]:
    by_router = "-"
    if phase.router_retries is not None:
        by_router = str(phase.router_retries)
    counts = (phase.sent, phase.answered, phase.lost, phase.retried, by_router, phase.slow)
    shares = (_percent(phase.cached_share), _percent(phase.kept_share))
    return (phase.name, f"{phase.start_s:g} s", *map(str, counts), *shares)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.1%}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.3f} s"


def draw_drill(report: DrillReport, path: Path) -> None:
    """Writes a picture: the latency of each request, and the cached share over time.

    Raises:
        OSError: The file cannot be written.
    """
    drill = report.drill
    total = report.figures.total
    title = (
        f"{total.sent} requests behind {report.router}: {total.lost} lost, {total.retried} retried,"
        f" {total.slow} slow"
    )
    slow_after_s = drill.slow_after_s
    answered = [outcome for outcome in report.requests if not outcome.error]
    lost = [outcome for outcome in report.requests if outcome.error]
    kinds = (
        ("answered", BLUE, ".", [o for o in answered if o.latency_s <= slow_after_s]),
        ("slow", ORANGE, "^", [o for o in answered if o.latency_s > slow_after_s]),
        ("lost", RED, "x", lost),
    )
    with picture_file(path, title, (9, 5.2), (2, 1)) as (latency_axes, cache_axes):
        for name, color, marker, outcomes in kinds:
            times_s = [outcome.due_s for outcome in outcomes]
            latencies_s = [outcome.latency_s for outcome in outcomes]
            latency_axes.plot(
                times_s, latencies_s, linestyle="", marker=marker, color=color, label=name
            )
        top_s = max([outcome.latency_s for outcome in report.requests] + [slow_after_s])
        latency_axes.set(ylabel="latency (s)", ylim=(0, 1.25 * top_s))
        latency_axes.axhline(slow_after_s, color=GREY, linestyle=":")
        centers_s, shares = _cached_shares(drill, answered)
        cache_axes.plot(centers_s, shares, color=BLUE, marker=".")
        cache_axes.set(ylabel="cached prompt tokens (%)", xlabel="time (s)", ylim=(0, 105))
        for axes in (latency_axes, cache_axes):
            axes.set_xlim(0, drill.duration_s)
            _shade(axes, drill)
        for phase in phases_of(drill):
            if phase.name != "before" and not phase.name.startswith("after"):
                latency_axes.text(
                    phase.start_s,
                    1.2 * top_s,
                    phase.name,
                    fontsize=6.5,
                    rotation=0,
                    verticalalignment="top",
                )


def _shade(axes: Axes, drill: Drill) -> None:
    for failure in drill.failures:
        start_s = drill.between_requests(failure.start_s)
        if isinstance(failure, Kill):
            axes.axvline(start_s, color=RED, linewidth=0.8)
            continue
        axes.axvspan(start_s, drill.between_requests(failure.end_s), color=GREY, alpha=0.18)


def _cached_shares(
    drill: Drill, answered: Sequence[Outcome]
) -> tuple[Sequence[float], Sequence[float]]:
    """Returns the middles of equal parts of the drill, and their cached shares in percent."""
    width_s = drill.duration_s / CACHE_BUCKETS
    prompt: Counter[int] = Counter()
    cached: Counter[int] = Counter()
    for outcome in answered:
        bucket = min(CACHE_BUCKETS - 1, int(outcome.due_s / width_s))
        prompt[bucket] += outcome.prompt_tokens
        cached[bucket] += outcome.cached_tokens
    buckets = sorted(bucket for bucket in prompt if prompt[bucket])
    centers_s = [(bucket + 0.5) * width_s for bucket in buckets]
    return centers_s, [100 * cached[bucket] / prompt[bucket] for bucket in buckets]
