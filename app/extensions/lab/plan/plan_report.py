"""Results of a plan: tables, figures as JSON, and a picture."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from app.extensions.lab.load.plotting import BLUE, GREEN, GREY, RED, Axes, picture_file
from app.extensions.lab.load.tables import markdown, milliseconds, wrap_last_column
from app.extensions.lab.plan.fleets import PlannedFleet
from app.extensions.lab.plan.search import FleetSearch
from app.extensions.lab.plan.slo import Slo

MAX_DRAWN_PERCENT = 1000
"""Greatest latency in a picture, in % of its limit."""
SIDE_SHARE = 0.05
"""Free space beside the prices, as a share of their range."""
LABEL_SHARE = 0.35
"""Free space for labels to the left of the lowest price, as a share of the range."""
MIN_LABEL_DISTANCE = 14
"""Least vertical distance of two labels, in pixels."""


def plan_table(name: str, slo: Slo, search: FleetSearch) -> str:
    """Returns the best fleet of each device and size as a Markdown table, then the answer."""
    columns = slo.columns()
    heads = (f"{latency.upper()} {statistic}" for latency, statistic in columns)
    rows = [("", "price/h", *heads, "of the limit", "")]
    cheapest = search.cheapest()
    for group in search.groups:
        best = group.best()
        label = group.name
        cells = ["-"] * (2 + len(columns))
        if best is not None:
            label = str(best)
            summary = best.verdict.summary
            cells = [
                f"{best.price:,.2f}",
                *(
                    milliseconds(summary.latency(latency).statistic(statistic))
                    for latency, statistic in columns
                ),
                f"{best.verdict.slo_share:.0%}",
            ]
        rows.append((label, *cells, group.explain(cheapest)))
    answer = search.ranking() or [f"nearest: {search.nearest()}"]
    heading = f"{name}: {len(search.load):,} requests; {slo}; {search.policy}"
    return "\n".join([heading, markdown(wrap_last_column(rows)), *answer])


def plan_figures(name: str, search: FleetSearch) -> dict[str, object]:
    """Returns the figures of one load for `--json`."""
    cheapest = search.cheapest()
    neighbors: dict[str, object] = {"next_safer": None, "next_cheaper": None}
    if cheapest is not None:
        for kind, fleet in (
            ("next_safer", search.next_safer(cheapest)),
            ("next_cheaper", search.next_cheaper(cheapest)),
        ):
            if fleet is not None:
                neighbors[kind] = _fleet_figures(fleet)
    return {
        "load": name,
        "cheapest": None if cheapest is None else _fleet_figures(cheapest),
        **neighbors,
        "routing": None if search.routing is None else search.routing.figures(),
        "uncertainty": None if search.uncertainty is None else search.uncertainty.figures(),
        "nearest": search.nearest() if cheapest is None else None,
        "reasons": {group.name: group.explain(cheapest) for group in search.groups},
        "front": [_fleet_figures(fleet) for fleet in search.front()],
        "simulated": [_fleet_figures(fleet) for fleet in search.fleets()],
    }


def _fleet_figures(fleet: PlannedFleet) -> dict[str, object]:
    profile = fleet.engine.job.plan.profile
    verdict = fleet.verdict
    return {
        "device": fleet.engine.device,
        "tensor_parallel_size": fleet.engine.job.options.tensor_parallel_size,
        "devices_per_pod": profile.devices,
        "serve_command": fleet.serve_command,
        "simulate_command": fleet.simulate_command,
        "replicas": fleet.replicas,
        "pods": fleet.pods,
        "prefill_pods": fleet.prefill_pods,
        "max_num_seqs": profile.engine.max_num_seqs,
        "max_num_batched_tokens": profile.engine.max_num_batched_tokens,
        "price_per_hour": fleet.price,
        "slo_share": verdict.slo_share,
        "binds": verdict.binds,
        "misses": verdict.misses,
        "summary": verdict.summary,
        "measured_errors": fleet.measured_errors,
    }


def draw_plan(searches: Mapping[str, FleetSearch], path: Path) -> None:
    """Draws a panel for each load, with price and worst latency of its fleets."""
    columns = min(2, len(searches))
    rows = -(-len(searches) // columns)
    title = "Price and worst latency of fleets: device, tensor-parallel size, pods"
    size = (max(6.4, 4.4 * columns), 3.8 * rows)
    with picture_file(path, title, size, (rows, columns)) as panels:
        for axes in panels[len(searches) :]:
            axes.set_visible(False)
        for axes, (name, search) in zip(panels, searches.items(), strict=False):
            _draw_search(axes, name, search, has_labels=columns == 1)


def _draw_search(axes: Axes, name: str, search: FleetSearch, *, has_labels: bool) -> None:
    cheapest = search.cheapest()
    _draw_fleets(axes, search.fleets(), label="simulated", style=".", color=GREY)
    _draw_fleets(axes, search.front(), label="Pareto front", style="-", color=BLUE)
    best = filter(None, [cheapest])
    _draw_fleets(axes, best, label="cheapest within the SLO", style="o", color=GREEN)
    axes.axhline(100, color=RED, linestyle="--", linewidth=1, label="SLO")
    axes.set(title=f"{name}: {cheapest}" if cheapest else name, xlabel="price an hour")
    axes.set(ylabel="worst latency (% of its limit)", yscale="log")
    prices = [fleet.price for fleet in search.fleets()]
    if prices:
        margin = max(max(prices) - min(prices), 0.1 * min(prices))
        # Labels of the front are written to the left of their points.
        left_margin = LABEL_SHARE if has_labels else SIDE_SHARE
        axes.set_xlim(
            max(0.0, min(prices) - left_margin * margin), max(prices) + SIDE_SHARE * margin
        )
    axes.set_ylim(top=min(MAX_DRAWN_PERCENT, axes.get_ylim()[1]))
    if has_labels:
        _label_front(axes, search)


def _label_front(axes: Axes, search: FleetSearch) -> None:
    """Writes the names of the fleets of the front that meet the SLO, where there is space.

    Nothing is drawn to the left of the front and below it. A name that would overlap an earlier one
    is left out; the cheapest fleet comes first.
    """
    taken_heights: list[float] = []
    for fleet in search.front():
        if fleet.verdict.slo_share > 1:
            continue
        _, height = axes.transData.transform(_position(fleet))
        if any(abs(height - taken) < MIN_LABEL_DISTANCE for taken in taken_heights):
            continue
        taken_heights.append(height)
        axes.annotate(
            str(fleet),
            _position(fleet),
            fontsize=7,
            xytext=(-3, -1),
            textcoords="offset points",
            ha="right",
            va="top",
        )


def _draw_fleets(
    axes: Axes, fleets: Iterable[PlannedFleet], *, label: str, style: str, color: str
) -> None:
    positions = [_position(fleet) for fleet in fleets]
    prices = [price for price, _ in positions]
    percent = [share for _, share in positions]
    axes.plot(prices, percent, style, color=color, label=label, drawstyle="steps-post")


def _position(fleet: PlannedFleet) -> tuple[float, float]:
    return fleet.price, 100 * fleet.verdict.slo_share
