"""Pictures by matplotlib in one style; equal runs write equal bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

from workbench.load.output_files import PARTIAL_SUFFIX

BLUE = "#2b6ca3"
RED = "#c8374a"
GREY = "#8a8a8a"
GREEN = "#2e8b57"
ORANGE = "#d98a1f"
TEXT_COLOR = "#1f1f1f"
DPI = 130
STYLE = {
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.linewidth": 0.6,
    "text.color": TEXT_COLOR,
    "axes.labelcolor": TEXT_COLOR,
    "axes.edgecolor": TEXT_COLOR,
    "xtick.color": TEXT_COLOR,
    "ytick.color": TEXT_COLOR,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "savefig.dpi": DPI,
    "svg.hashsalt": "understudy",
}
"""Settings of matplotlib for every picture. The salt gives equal SVG files equal bytes."""
TITLE_CHARACTERS_PER_INCH = 14
LEGEND_COLUMN_INCHES = 1.6

Axes = Any
"""Axes of matplotlib, which is optional."""


@contextmanager
def picture_file(
    path: Path,
    title: str,
    size: tuple[float, float] = (8, 4.8),
    grid: tuple[int, int] = (2, 2),
    widths: Sequence[float] | None = None,
) -> Iterator[list[Axes]]:
    """Yields axes, and writes them as PNG or SVG at the end; the suffix of the path decides.

    `size` is in inches, `grid` in rows and columns. One legend stands below all axes.

    Raises:
        OSError: The file cannot be written.
    """
    # Imported when needed: matplotlib is optional, and takes a second.
    with import_module("matplotlib").rc_context(STYLE):
        figure = import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
        wrapped_title = fill(title, int(TITLE_CHARACTERS_PER_INCH * size[0]))
        figure.suptitle(wrapped_title, fontsize=9, x=0.01, horizontalalignment="left")
        yield list(figure.subplots(*grid, width_ratios=widths, squeeze=False).flat)
        _finish_axes(figure, legend_columns=int(size[0] / LEGEND_COLUMN_INCHES))
        suffix = Path(path.name.removesuffix(PARTIAL_SUFFIX)).suffix[1:].lower()
        metadata = {"Date": None} if suffix == "svg" else None
        figure.savefig(path, format=suffix, metadata=metadata)
    if suffix == "png":
        with import_module("PIL.Image").open(path) as image:  # a third of the size with a palette
            image.convert("RGB").quantize(128).save(path, "PNG", optimize=True, dpi=(DPI, DPI))


def _finish_axes(figure: Any, legend_columns: int) -> None:
    handles: dict[str, object] = {}
    for axes in figure.axes:
        _format_ticks(axes.xaxis)
        _format_ticks(axes.yaxis)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(
            handles.values(),
            handles,
            loc="outside lower center",
            frameon=False,
            ncols=legend_columns,
        )


def start_at_zero(axes: Axes) -> None:
    """Begins a linear y axis at 0, with room above what is drawn."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _format_ticks(axis: Any) -> None:
    """Writes numbers as 0.5 and 20,000, without powers and offsets; ticks with names stay."""
    ticker = import_module("matplotlib.ticker")
    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(ticker.NullLocator())
    elif not isinstance(axis.get_major_formatter(), ticker.ScalarFormatter):
        return
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.10g}"))
