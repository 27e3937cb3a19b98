"""The figures as a picture; needs matplotlib (requirements-fleet.txt)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from app.fleet.summary import Summary

COLORS = ("#9a9a9a", "#5b8db8", "#d1495b")
QUANTILES = ("mean", "p50", "p90", "p99")
HOW_TO_GET = "no picture: matplotlib is missing; pip install -r requirements-fleet.txt"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw(summaries: Sequence[Summary], title: str, path: Path) -> None:
    """Write a PNG: the TTFTs, their quantiles, the cached share of the prompts. OSError if it cannot."""
    # Imported when needed: it is optional, and takes a second.
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(11, 4.2), layout="constrained")
    canvas = import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    shares, bars, cached = figure.subplots(1, 3, width_ratios=(5, 4, 2))
    _draw_shares(shares, summaries)
    _draw_quantiles(bars, summaries)
    _draw_cached(cached, summaries)
    for axes in (shares, bars, cached):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
    canvas.print_png(path)


def _draw_shares(axes: Any, summaries: Sequence[Summary]) -> None:
    """How many of the requests had their first token after so long."""
    for at, color in zip(summaries, COLORS, strict=False):
        shares = [(rank + 1) / len(at.ttfts_s) * 100 for rank in range(len(at.ttfts_s))]
        axes.step(
            [time_s * 1000 for time_s in at.ttfts_s], shares, where="post", label=at.policy, color=color
        )
    axes.set(title="requests that have their first token", xlabel="ms", ylabel="%", ylim=(0, 102))
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right")


def _draw_quantiles(axes: Any, summaries: Sequence[Summary]) -> None:
    width = 0.8 / len(summaries)
    for number, (at, color) in enumerate(zip(summaries, COLORS, strict=False)):
        times_s = (at.ttft_mean_s, at.ttft_p50_s, at.ttft_p90_s, at.ttft_p99_s)
        places = [place + (number - (len(summaries) - 1) / 2) * width for place in range(len(QUANTILES))]
        axes.bar(places, [time_s * 1000 for time_s in times_s], width, label=at.policy, color=color)
    axes.set_xticks(range(len(QUANTILES)), QUANTILES)
    axes.set(title="time to first token", ylabel="ms")


def _draw_cached(axes: Any, summaries: Sequence[Summary]) -> None:
    names = [at.policy for at in summaries]
    bars = axes.bar(names, [at.cached_share * 100 for at in summaries], color=COLORS[: len(names)])
    axes.bar_label(bars, fmt="%.0f")
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set(title="cached prompt tokens", ylabel="%", ylim=(0, 105))
