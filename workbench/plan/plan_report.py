"""Results of a plan: tables, figures as JSON, and a picture."""

from collections.abc import Mapping
from pathlib import Path

from workbench.load.plotting import BLUE, GREEN, GREY, RED, Axes, picture_file
from workbench.load.tables import markdown, milliseconds, wrap_last_column
from workbench.plan.answer import PlanAnswer
from workbench.plan.fleets import PlannedFleet, price_order
from workbench.plan.search import FleetSearch
from workbench.plan.slo import Slo

MAX_DRAWN_PERCENT = 300
"""Longest bar of a picture, in % of the limit."""
MAX_BARS = 20
BAR_INCHES = 0.24
"""Height of a bar with its gap."""


def plan_text(
    name: str, slo: Slo, search: FleetSearch, *, is_only: bool = True, is_long: bool = False
) -> str:
    """Returns the answer for a load: verdict, warnings, reasons, table, and then the commands.

    Args:
        name: Name of the load.
        slo: Limits of the plan.
        search: Search that has ended.
        is_only: True for a plan of one load, whose name the verdict does not need.
        is_long: True for all reasons, and the commands of all fleets.
    """
    answer = PlanAnswer(search, slo)
    lines = [
        answer.headline("" if is_only else name),
        *answer.warnings(),
        *answer.reasons(is_long=is_long),
        plan_table(name, slo, search),
        *answer.commands(is_long=is_long),
    ]
    return "\n".join(lines)


def plan_table(name: str, slo: Slo, search: FleetSearch) -> str:
    """Returns the best fleet of each device and size as a Markdown table."""
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
    heading = f"{name}: {len(search.load):,} requests; {slo}; {search.policy}"
    return "\n".join([heading, markdown(wrap_last_column(rows))])


def plan_figures(name: str, slo: Slo, search: FleetSearch) -> dict[str, object]:
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
    answer = PlanAnswer(search, slo)
    return {
        "load": name,
        "verdict": answer.headline(),
        "warnings": answer.warnings(),
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
    """Draws a panel for each load, with a bar for each fleet and the limit as a line."""
    columns = min(2, len(searches))
    rows = -(-len(searches) // columns)
    title = "Worst latency of fleets (device, tensor-parallel size, pods) in % of its limit"
    bars = max(len(drawn_fleets(search)) for search in searches.values())
    size = (max(6.4, 4.4 * columns), rows * (1.4 + BAR_INCHES * bars))
    with picture_file(path, title, size, (rows, columns)) as panels:
        for axes in panels[len(searches) :]:
            axes.set_visible(False)
        for axes, (name, search) in zip(panels, searches.items(), strict=False):
            draw_bars(axes, name, search)


def drawn_fleets(search: FleetSearch) -> list[PlannedFleet]:
    """Returns the fleets of a picture, the cheapest first.

    They are the fleets of the Pareto front and the best of each device and size.
    """
    fleets = [*search.front(), *search.best_of_groups()]
    drawn: dict[str, PlannedFleet] = {}
    for fleet in sorted(fleets, key=price_order):
        drawn.setdefault(f"{fleet}\n{fleet.price:,.2f}/h", fleet)
    return list(drawn.values())[:MAX_BARS]


def draw_bars(axes: Axes, name: str, search: FleetSearch) -> None:
    """Draws a bar for each fleet: green for the cheapest, blue within the SLO, and grey above."""
    fleets = drawn_fleets(search)
    cheapest = search.cheapest()
    for place, fleet in enumerate(fleets):
        percent = 100 * fleet.verdict.slo_share
        color, label = GREY, "misses the SLO"
        if fleet == cheapest:
            color, label = GREEN, "cheapest within the SLO"
        elif not fleet.verdict.misses:
            color, label = BLUE, "within the SLO"
        axes.barh(place, min(percent, MAX_DRAWN_PERCENT), color=color, label=label)
        axes.text(
            min(percent, MAX_DRAWN_PERCENT),
            place,
            f" {percent:,.0f}%",
            fontsize=7,
            va="center",
        )
    axes.axvline(100, color=RED, linestyle="--", linewidth=1, label="limit")
    axes.set_yticks(
        range(len(fleets)),
        labels=[f"{fleet}, {fleet.price:,.2f}/h" for fleet in fleets],
    )
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(title=name, xlabel="worst latency (% of its limit)")
    axes.set_xlim(0, 1.12 * max([100.0, *(patch.get_width() for patch in axes.patches)]))
