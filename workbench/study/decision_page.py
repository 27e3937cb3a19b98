"""A decision as one HTML file that loads nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template

from config import VERSION
from workbench.load.tables import milliseconds
from workbench.study.decider import QUANTITIES, Effect, Row
from workbench.study.decision_report import (
    SIMULATED_TODAY,
    Decision,
    difference_text,
    share_text,
    shares_table,
    simulated_cells,
)
from workbench.study.window_comparison import NAMES

FOLDER = Path(__file__).with_name("page")
MAX_BARS = 12
MAX_RATIO = 4.0
"""Longest bar, as a multiple of today's; longer ones are cut."""
MAX_LINES = 3
"""Most changes in the picture over time."""
LONG_MINUTES = 120.0
NOT_CLEAR = "not distinguishable"
OVERLOADED = "cannot keep up"


def decision_page(decision: Decision) -> str:
    """Returns the page."""
    template = Template((FOLDER / "report.html").read_text("utf-8"))
    today = decision.today
    return template.substitute(
        title=escape(f"What if? {decision.model}"),
        style=(FOLDER / "report.css").read_text("utf-8"),
        subtitle=escape(
            f"{today.requests:,.0f} requests on {today.pods:.3g} pods, {today.start} to {today.end}"
        ),
        answer=_items(decision.answer),
        pictures="\n".join([*_bars(decision), _times(decision)]),
        table=_table(_head(), _rows(decision)),
        note=escape(_note(decision)),
        shares=_shares(decision),
        measured=_measured(decision),
        assumed=_items(decision.assumptions),
        commands="\n".join(f"<pre>{escape(command)}</pre>" for command in decision.commands),
        version=escape(VERSION),
    )


def _items(lines: Iterable[str]) -> str:
    return "\n".join(f"<li>{escape(line)}</li>" for line in lines)


def _bars(decision: Decision) -> list[str]:
    """Returns a picture for each latency, with a band for the error around today's value."""
    panels = []
    for name in QUANTITIES:
        rows = [
            (row, effect)
            for row in decision.rows
            for effect in row.effects
            if effect.quantity == name
        ]
        if not rows:
            continue
        simulated_s = rows[0][1].simulated_s
        today_s = max(rows[0][1].mean_s, simulated_s)
        most_s = max(today_s, *(effect.mean_s for _, effect in rows))
        most_s = min(most_s, MAX_RATIO * today_s) or 1.0
        text = milliseconds(simulated_s)
        bars = [_bar(SIMULATED_TODAY, simulated_s / most_s, text, kind="simulated")]
        for number, (row, effect) in enumerate(rows[:MAX_BARS]):
            kind = "" if number else "today"
            text = _value(row, effect, is_today=not number)
            share = min(1.0, effect.mean_s / most_s)
            bar = _bar(row.name, share, text, kind=kind, band=_band(effect, most_s))
            if number:
                bars.append(bar)
            else:
                bars.insert(0, bar)
        error = decision.errors.get(name)
        text = (
            ""
            if error is None
            else f" The band is the error of the simulation, {share_text(error)}."
        )
        panels.append(
            f'<div class="panel"><h2>Mean {NAMES[name]}</h2>{"".join(bars)}'
            f'<p class="muted">Lower is better.{text}</p></div>'
        )
    return panels


def _value(row: Row, effect: Effect, *, is_today: bool) -> str:
    if not row.keeps_up:
        return OVERLOADED
    text = milliseconds(effect.mean_s)
    if is_today:
        return text
    return f"{text} {difference_text(effect) if effect.is_distinguishable else '~'}"


def _bar(name: str, share: float, text: str, *, kind: str, band: str = "") -> str:
    return (
        f'<div class="bar"><span class="name">{escape(name)}</span><span class="track">'
        f'<span class="fill {kind}" style="width: {100 * share:.2f}%"></span>{band}</span>'
        f'<span class="value">{escape(text)}</span></div>'
    )


def _band(effect: Effect, most_s: float) -> str:
    if effect.error is None:
        return ""
    low = max(0.0, effect.today_s * (1 - effect.error)) / most_s
    high = min(1.0, effect.today_s * (1 + effect.error) / most_s)
    return (
        f'<span class="band" style="left: {100 * low:.2f}%;'
        f' width: {100 * max(0.0, high - low):.2f}%"></span>'
    )


def _times(decision: Decision) -> str:
    """Returns a picture of the mean TTFT of each window."""
    today = decision.today
    lines: list[tuple[str, str, Sequence[float | None]]] = [
        ("today", "measured", today.ttft_by_window),
        ("simulated", SIMULATED_TODAY, decision.rows[0].ttft_by_window),
    ]
    changes = [row for row in decision.rows[1:] if row.keeps_up]
    for number, row in enumerate(changes[:MAX_LINES]):
        lines.append((f"l{number}", f"{row.name}, simulated", row.ttft_by_window))
    values = [value for _, _, series in lines for value in series if value is not None]
    most_s = 1.05 * max(values, default=1.0) or 1.0
    last = today.minutes[-1] if today.minutes else 1.0
    first = today.minutes[0] if today.minutes else 0.0
    drawn = "".join(
        _line(kind, today.minutes, series, first=first, last=last, most_s=most_s)
        for kind, _, series in lines
    )
    legend = "".join(
        f'<span><svg viewBox="0 0 34 8" aria-hidden="true"><line class="{kind}" x1="0" y1="4"'
        f' x2="34" y2="4"/></svg>{escape(name)}</span>'
        for kind, name, _ in lines
    )
    is_long = last > LONG_MINUTES
    unit = "h" if is_long else "min"
    divisor = 60 if is_long else 1
    return (
        f'<div class="panel wide"><h2>Mean TTFT over time</h2><p class="muted">up to'
        f' {milliseconds(most_s)}</p><div class="plot"><svg viewBox="0 0 1000 100"'
        ' preserveAspectRatio="none" role="img" aria-label="Mean TTFT of each window">'
        f'{drawn}</svg></div><p class="muted axis"><span>{first / divisor:.3g} {unit}</span>'
        f'<span>{last / divisor:.3g} {unit}</span></p><div class="legend">{legend}</div></div>'
    )


def _line(
    kind: str,
    minutes: Sequence[float],
    series: Sequence[float | None],
    *,
    first: float,
    last: float,
    most_s: float,
) -> str:
    width = max(last - first, 1e-9)
    points = [
        f"{1000 * (minute - first) / width:.1f},{100 - 100 * value / most_s:.2f}"
        for minute, value in zip(minutes, series, strict=True)
        if value is not None
    ]
    return f'<polyline class="{kind}" points="{" ".join(points)}"/>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table; cells are HTML."""
    heads = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _head() -> list[str]:
    names = [NAMES[name] for name in QUANTITIES]
    return ["", "pods", "devices", "price an hour", "requests/s", *names, "KV cache"]


def _rows(decision: Decision) -> list[list[str]]:
    rows = [_cells(row) for row in decision.rows]
    rows.insert(1, [SIMULATED_TODAY, *[""] * 4, *simulated_cells(decision), ""])
    return rows


def _cells(row: Row) -> list[str]:
    effects = {effect.quantity: effect for effect in row.effects}
    cells = [
        escape(row.name) + _verdict(row),
        f"{row.pods:.3g}",
        f"{row.devices:.3g}",
        "-" if row.price_per_hour is None else f"{row.price_per_hour:,.2f}",
        f"{row.rate_per_s:.3g}",
    ]
    for name in QUANTITIES:
        effect = effects.get(name)
        if effect is None or not row.keeps_up:
            cells.append("-")
        else:
            cells.append(_effect_cell(effect))
    return [*cells, f"{row.kv_usage:.1%}"]


def _effect_cell(effect: Effect) -> str:
    text = milliseconds(effect.mean_s)
    if not effect.difference or not effect.is_distinguishable:
        return text
    kind = "worse" if effect.difference > 0 else "better"
    return f'{text} <span class="{kind}">{escape(difference_text(effect))}</span>'


def _verdict(row: Row) -> str:
    if not row.keeps_up:
        return f'<br><span class="worse">{OVERLOADED}</span>'
    if row.is_distinguishable or all(not effect.difference for effect in row.effects):
        return ""
    return f'<br><span class="muted">{NOT_CLEAR}</span>'


def _note(decision: Decision) -> str:
    errors = ", ".join(
        f"{NAMES[name]} {share_text(error)}" for name, error in decision.errors.items()
    )
    text = "Differences within the error of the simulation on this fleet are left out"
    if errors:
        text += f": {errors}"
    return f"{text}. Prices are those of all accelerators for an hour."


def _shares(decision: Decision) -> str:
    head, *rows = shares_table(decision)
    if len(head) < 2:
        return "<p>No bounds were measured.</p>"
    cells = [[escape(cell) for cell in row] for row in rows]
    return _table([escape(cell) for cell in head], cells)


def _measured(decision: Decision) -> str:
    today = decision.today
    facts = {
        "model": decision.model,
        "time": f"{today.start} to {today.end}",
        "source": today.source or "not known",
        "requests": f"{today.requests:,.0f}, {today.rate_per_s:.3g} per second",
        "pods": f"{today.pods:.3g}",
        "cached prompt tokens": f"{today.cached_share:.1%}",
        "simulation": decision.verdict,
    }
    for name, mean_s in today.means_s.items():
        facts[f"mean {NAMES[name]}"] = milliseconds(mean_s)
    return "\n".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()
    )
