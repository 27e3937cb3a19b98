"""The result of a decision: rows with assumptions and measurements, and its text."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from config.files import read_whole
from config.untrusted import UntrustedDataError, decode_untrusted
from workbench.load.study_folder import UNCOMPARED
from workbench.load.tables import markdown, milliseconds
from workbench.study.decider import QUANTITIES, Decider, Effect, Row
from workbench.study.folder import PROVENANCE_FILE, Study, text_of
from workbench.study.quantities import E2E, TTFT
from workbench.study.simulated import mean_level, mean_of
from workbench.study.window_comparison import NAMES, Comparison, means_by_window

MAX_SOURCE_LENGTH = 200
FEW_PERCENT = 0.095
"""Difference below which a decimal is shown."""
SIMULATED_TODAY = "today, simulated"
LARGE_RATIO = 10.0
"""Ratio of latencies from which on a factor is shown instead of a percentage."""


class _Provenance(Struct):
    """The part of `provenance.json` that is shown."""

    source: str = ""


class Today(Struct, frozen=True, kw_only=True):
    """Measurements of the present fleet."""

    start: str
    end: str
    source: str
    requests: float
    rate_per_s: float
    pods: float
    means_s: dict[str, float]
    ttft_by_window: list[float | None]
    minutes: list[float]
    """Middles of the windows, in minutes since the start."""
    cached_share: float


class Decision(Struct, frozen=True, kw_only=True):
    """Changes of a fleet, compared with today."""

    model: str
    study: str
    verdict: str
    """Verdict of `study compare`."""
    today: Today
    errors: dict[str, float]
    """Errors of the simulation on this fleet; smaller differences mean nothing."""
    share_errors: dict[str, float]
    """Errors of the shares of requests."""
    rows: list[Row]
    """The first one is today's fleet, simulated."""
    answer: list[str]
    """Lines that sum up the rows."""
    assumptions: list[str]
    commands: list[str]
    """Commands that repeat the result."""


def make_decision(
    study: Study,
    comparison: Comparison | None,
    decider: Decider,
    *,
    rows: Sequence[Row],
    answer: Sequence[str] | None,
    command: str,
) -> Decision:
    """Returns the result; `answer` is that of `cheapest_lines`, and None for given changes."""
    errors = dict(decider.errors())
    commands = [command]
    if comparison is not None and comparison.command:
        commands.insert(0, comparison.command)
    verdict = UNCOMPARED
    if comparison is not None:
        verdict = comparison.verdict
    return Decision(
        model=study.workload.model,
        study=str(study.folder),
        verdict=verdict,
        today=_today(study, decider),
        errors=errors,
        share_errors=decider.share_errors(),
        rows=list(rows),
        answer=[*(answer or ()), *map(sentence_of, rows[1:])],
        assumptions=_assumptions(study, rows),
        commands=commands,
    )


def _today(study: Study, decider: Decider) -> Today:
    windows = study.measured.windows
    means = {}
    for name in QUANTITIES:
        mean = mean_of([window.latencies[name] for window in windows if name in window.latencies])
        if mean is not None:
            means[name] = mean
    tokens = [window.requests * window.input_tokens.mean for window in study.workload.windows]
    cached = [
        count * window.cached_share
        for count, window in zip(tokens, study.workload.windows, strict=True)
    ]
    begin_s = windows[0].start
    return Today(
        start=text_of(begin_s),
        end=text_of(windows[-1].end),
        source=_source(study),
        requests=sum(window.latencies[E2E].count for window in windows if E2E in window.latencies),
        rate_per_s=decider.measured_rate,
        pods=mean_level([window.pods for window in windows]) or 0.0,
        means_s=means,
        ttft_by_window=means_by_window([window.latencies for window in windows], TTFT),
        minutes=[((window.start + window.end) / 2 - begin_s) / 60 for window in windows],
        cached_share=sum(cached) / sum(tokens) if sum(tokens) else 0.0,
    )


def _source(study: Study) -> str:
    """Returns the source of a study, as its provenance has it; empty if that cannot be read."""
    try:
        document = read_whole(study.folder / PROVENANCE_FILE)
        return decode_untrusted(document, type=_Provenance).source[:MAX_SOURCE_LENGTH]
    except (OSError, UntrustedDataError):
        return ""


def _assumptions(study: Study, rows: Sequence[Row]) -> list[str]:
    lines = [*study.workload.assumptions, *study.fleet.assumed]
    lines.append("Means change by the same ratio as those of the simulation.")
    lines.append("All pods are alike, and clients send no more requests if answers are late.")
    computed = [row for row in rows if row.is_computed]
    if computed:
        names = ", ".join(row.name for row in computed)
        lines.append(
            f"{names}: the engine is computed from data sheets, and was not measured on this"
            f" fleet ({computed[0].engine})."
        )
    return lines


def cheapest_lines(
    rows: Sequence[Row], cheapest: Row | None, most_pods: int, *, max_rise: float
) -> list[str]:
    """Returns the lines about the cheapest fleet; None is today's."""
    today = rows[0]
    if cheapest is None:
        text = f"Cheapest: today's pods ({most_pods})"
        fewer = next((row for row in rows[1:] if row.pods == most_pods - 1), None)
        if fewer is not None:
            text += f"; with {most_pods - 1}, {_rise_text(fewer, max_rise)}"
        return [text]
    text = f"Cheapest: {cheapest.pods:g} instead of {today.pods:.3g} pods"
    if cheapest.price_per_hour is not None and today.price_per_hour:
        saved = 1 - cheapest.price_per_hour / today.price_per_hour
        text += f", {cheapest.price_per_hour:,.2f} an hour ({saved:.0%} less)"
    return [f"{text}; no mean latency rises by more than {max_rise:.0%} or the error"]


def _rise_text(row: Row, max_rise: float) -> str:
    """Returns the rises that are too large."""
    if not row.keeps_up:
        return "the pods cannot keep up"
    rises = [
        f"{NAMES[effect.quantity]} rises by {difference_text(effect).lstrip('+')}"
        for effect in row.rises(max_rise)
    ]
    return " and ".join(rises)


def sentence_of(row: Row) -> str:
    """Returns a sentence about the differences of a row from today."""
    note = ""
    if row.is_computed:
        note = " (computed from data sheets, not measured on this fleet)"
    if not row.keeps_up:
        late = 1 - row.ended
        unfinished = f"{late:.0%} of the requests have not ended at the end"
        return f"{row.name}: cannot keep up: {unfinished}{note}"
    clear = [effect for effect in row.effects if effect.is_distinguishable]
    unclear = [NAMES[effect.quantity] for effect in row.effects if not effect.is_distinguishable]
    if not clear:
        return f"{row.name}: not distinguishable from today ({_largest(row.effects)}){note}"
    text = ", ".join(f"{NAMES[effect.quantity]} {difference_text(effect)}" for effect in clear)
    if unclear:
        text += f"; not distinguishable: {', '.join(unclear)}"
    return f"{row.name}: {_direction(clear)}, {text}{note}"


def _direction(effects: Sequence[Effect]) -> str:
    """Returns whether latencies rise or fall."""
    rising = [effect for effect in effects if effect.difference > 0]
    if not rising:
        return "faster"
    return "slower" if len(rising) == len(effects) else "faster and slower"


def _largest(effects: Sequence[Effect]) -> str:
    effect = max(effects, key=_difference, default=None)
    if effect is None or effect.error is None:
        return "no latency could be compared"
    text = f"largest difference: {NAMES[effect.quantity]} {difference_text(effect)}"
    return f"{text}, error {share_text(effect.error)}"


def _difference(effect: Effect) -> float:
    return abs(effect.difference) if effect.difference < inf else 0.0


def difference_text(effect: Effect) -> str:
    """Returns the difference from today, such as +12%, or x15 for a large one."""
    ratio = 1 + effect.difference
    if ratio >= LARGE_RATIO:
        return f"x{ratio:,.0f}"
    digits = 1 if abs(effect.difference) < FEW_PERCENT else 0
    return f"{effect.difference:+.{digits}%}"


def share_text(share: float) -> str:
    """Returns a share in percent, with a decimal if it is small."""
    return f"{share:.{1 if share < FEW_PERCENT else 0}%}"


def decision_text(decision: Decision) -> str:
    """Returns the answer, tables of means and of shares, and the commands."""
    today = decision.today
    heading = (
        f"{decision.study}: {decision.model}, {today.requests:,.0f} requests,"
        f" {today.rate_per_s:.3g}/s on {today.pods:.3g} pods; study compare: {decision.verdict}"
    )
    head = ["mean", "pods", "price/h", *(NAMES[name] for name in QUANTITIES)]
    rows = [head]
    for row in decision.rows:
        price = "-" if row.price_per_hour is None else f"{row.price_per_hour:,.2f}"
        rows.append([row.name, f"{row.pods:.3g}", price, *_cells(row)])
    rows.insert(2, [SIMULATED_TODAY, "", "", *simulated_cells(decision)])
    if decision.errors:
        cells = [
            f"{decision.errors[name]:.0%}" if name in decision.errors else "-"
            for name in QUANTITIES
        ]
        rows.append(["error", "", "", *cells])
    parts = [*decision.answer, heading, markdown(rows)]
    shares = shares_table(decision)
    if len(shares[0]) > 1:
        parts += ["", markdown(shares)]
    parts += ["", *(f"repeat: {command}" for command in decision.commands)]
    return "\n".join(parts)


def simulated_cells(decision: Decision) -> list[str]:
    """Returns the simulated means of the present fleet."""
    means_s = {effect.quantity: effect.simulated_s for effect in decision.rows[0].effects}
    return [milliseconds(means_s.get(name)) for name in QUANTITIES]


def _cells(row: Row) -> list[str]:
    effects = {effect.quantity: effect for effect in row.effects}
    cells = []
    for name in QUANTITIES:
        effect = effects.get(name)
        if effect is None or not row.keeps_up:
            cells.append("-")
            continue
        mark = ""
        if effect.difference:
            mark = f" {difference_text(effect)}" if effect.is_distinguishable else " ~"
        cells.append(f"{milliseconds(effect.mean_s)}{mark}")
    return cells


def shares_table(decision: Decision) -> list[list[str]]:
    """Returns the shares of requests up to bounds of the measured buckets."""
    shares = decision.rows[0].shares
    head = ["requests with"]
    head += [f"{NAMES[share.quantity]} <= {milliseconds(share.bound_s)}" for share in shares]
    rows = [head, [decision.rows[0].name, *(f"{share.measured:.1%}" for share in shares)]]
    for row in decision.rows:
        name = row.name if row is not decision.rows[0] else SIMULATED_TODAY
        rows.append([name, *(f"{share.simulated:.1%}" for share in row.shares)])
    if decision.share_errors:
        errors = [decision.share_errors.get(share.quantity) for share in shares]
        rows.append(["error", *("-" if error is None else f"{error:.1%}" for error in errors)])
    return rows
