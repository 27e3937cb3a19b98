"""Parts of reports: quantiles of times, tables, pictures, progress, and atomic files."""

import csv
import gzip
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any, TextIO

from config import ConfigError, UsageError

TIMES = ("TTFT", "ITL", "E2E")
QUANTILES = (0.5, 0.9, 0.99)
NAMES = tuple(f"{time} {figure}" for time in TIMES for figure in ("mean", "p50", "p90", "p99"))
"""Names of the twelve figures, in their fixed order."""
BLUE, RED, GREY, GREEN, ORANGE = "#2b6ca3", "#c8374a", "#8a8a8a", "#2e8b57", "#d98a1f"
Axes = Any
"""Axes of matplotlib, which is optional."""
ENDINGS = (".png", ".svg")
DPI = 130
_INK = "#1f1f1f"
_COLORED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
STYLE = {
    **{
        "font.size": 9,
        "axes.labelsize": 9,
        "axes.titlesize": 9,
        "axes.linewidth": 0.6,
        **dict.fromkeys(_COLORED, _INK),
    },
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True},
    **{"axes.grid": True, "axes.grid.axis": "y", "grid.alpha": 0.35, "grid.linewidth": 0.6},
    **{
        "lines.linewidth": 1.4,
        "lines.markersize": 3.5,
        "savefig.dpi": DPI,
        "svg.hashsalt": "understudy",
    },
}
"""Settings of matplotlib for every picture. The salt gives equal SVG files equal bytes."""
TITLE_WIDTH = 14
"""Most characters of a title in an inch."""
COLUMN_INCHES = 1.6
"""Width of a legend's column."""
PART = ".part"
"""Suffix of a file that is not complete yet."""
QUIET_S = 1.0
"""Seconds before the first line of progress."""
TERMINAL_EVERY_S = 0.2
LINE_EVERY_S = 10.0


def four(values: Iterable[float]) -> list[float]:
    """Returns mean, p50, p90 and p99; a quantile is one of the values."""
    ascending = sorted(values)
    return [sum(ascending) / len(ascending), *(quantile(ascending, share) for share in QUANTILES)]


def quantile(ascending: Sequence[float], share: float) -> float:
    """Returns the value that exceeds this share of the values."""
    return ascending[int(len(ascending) * share)]


def latencies(
    send_s: Sequence[float],
    first_s: Sequence[float],
    last_s: Sequence[float],
    output_tokens: Sequence[float],
) -> tuple[list[float], list[float], list[float]]:
    """Returns TTFT, ITL and E2E in seconds; ITL is a request's mean, without single tokens."""
    ttft = [first - send for send, first in zip(send_s, first_s, strict=True)]
    itl = [
        (last - first) / (tokens - 1)
        for first, last, tokens in zip(first_s, last_s, output_tokens, strict=True)
        if tokens > 1
    ]
    return ttft, itl, [last - send for send, last in zip(send_s, last_s, strict=True)]


def twelve(*columns: Sequence[float]) -> list[float]:
    """Returns four figures each of TTFT, ITL and E2E. Takes the columns of `latencies`."""
    return [figure for its in latencies(*columns) for figure in four(its)]


def milliseconds(seconds: float | None) -> str:
    """Returns seconds as text in milliseconds; a dash for none."""
    if seconds is None:
        return "-"
    thousandths = seconds * 1000
    return f"{thousandths:,.0f} ms" if thousandths >= 1000 else f"{thousandths:.1f} ms"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table; the first of `rows` is the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    # The first column holds names.
    lines = [[row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (lines[0], ruler, *lines[1:]))


@contextmanager
def picture_file(
    path: Path,
    title: str,
    size: tuple[float, float] = (8, 4.8),
    grid: tuple[int, int] = (2, 2),
    widths: Sequence[float] | None = None,
) -> Iterator[list[Axes]]:
    """Yields axes, `grid` rows and columns in `size` inches, and writes them as PNG or SVG, by the
    ending.

    One legend stands below all axes. Equal runs write equal bytes. Raises OSError.
    """
    # Imported when needed: matplotlib is optional, and takes a second.
    with import_module("matplotlib").rc_context(STYLE):
        figure = import_module("matplotlib.figure").Figure(figsize=size, layout="constrained")
        figure.suptitle(
            fill(title, int(TITLE_WIDTH * size[0])), fontsize=9, x=0.01, horizontalalignment="left"
        )
        yield list(figure.subplots(*grid, width_ratios=widths, squeeze=False).flat)
        labelled: dict[str, object] = {}
        for axes in figure.axes:
            _plain_ticks(axes.xaxis)
            _plain_ticks(axes.yaxis)
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                labelled.setdefault(label, handle)
        if labelled:
            below = {
                "loc": "outside lower center",
                "frameon": False,
                "ncols": int(size[0] / COLUMN_INCHES),
            }
            figure.legend(labelled.values(), labelled, **below)
        form = Path(path.name.removesuffix(PART)).suffix[1:].lower()
        figure.savefig(path, format=form, metadata={"Date": None} if form == "svg" else None)
    if form == "png":
        with import_module("PIL.Image").open(path) as image:  # a third of the size with a palette
            image.convert("RGB").quantize(128).save(path, "PNG", optimize=True, dpi=(DPI, DPI))


def from_zero(axes: Axes) -> None:
    """Begins a linear y axis at 0, with room above what is drawn."""
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])


def _plain_ticks(axis: Any) -> None:
    """Writes numbers as 0.5 and 20,000, without powers and offsets; ticks with names stay."""
    ticker = import_module("matplotlib.ticker")
    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(ticker.NullLocator())
    elif not isinstance(axis.get_major_formatter(), ticker.ScalarFormatter):
        return
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.10g}"))


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a CSV file; a name with .gz at the end is packed, always to the same bytes."""
    with path.open("wb") as raw:
        is_packed = path.name.removesuffix(PART).endswith(".gz")
        binary = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if is_packed else raw
        with io.TextIOWrapper(binary, encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(header)
            writer.writerows(rows)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path that becomes `path` when the block succeeds, and is removed
    otherwise.
    """
    target = os.path.realpath(path)  # a link stays one
    part = Path(target).with_name(path.name + PART)
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def check_targets(written: Iterable[Path | None], read: Iterable[str | Path | None] = ()) -> None:
    """Raises ConfigError for a missing folder, a folder or a device, UsageError for a file named
    twice.
    """
    paths = [path for path in written if path is not None]
    named = [os.path.realpath(path) for path in (*paths, *read) if path is not None]
    for path, target in zip(paths, map(Path, named), strict=False):
        if not target.parent.is_dir():
            raise ConfigError(f"{path}: there is no folder {target.parent}")
        if target.exists() and not target.is_file():
            raise ConfigError(
                f"{path}: is {'a folder' if target.is_dir() else 'not an ordinary file'}"
            )
        if named.count(str(target)) > 1:
            raise UsageError(f"{path} is named twice")


def check_picture(path: Path | None) -> None:
    """Raises ConfigError for a file with another ending than a picture's."""
    if path is not None and path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{path}: a picture's name ends with {' or '.join(ENDINGS)}")


@contextmanager
def progress_of(
    stream: TextIO, name: str, total: int, unit: str
) -> Iterator[Callable[[int], None]]:
    """Yields a function that receives how much is done; a bar shows that after a second, until the
    end.
    """
    begun_s, bar = time.monotonic(), None

    def tell(done: int) -> None:
        nonlocal bar
        if bar is not None:
            bar.update(done - bar.n)
        elif time.monotonic() - begun_s > QUIET_S:
            tqdm = import_module("tqdm").tqdm  # takes as long as a short simulation
            # A bar with a delay is not drawn before its start is moved to that of the work.
            bar = tqdm(
                desc=name, total=total, unit=f" {unit}", leave=False, file=stream, delay=1e-9
            )
            bar.mininterval = bar.maxinterval = (
                TERMINAL_EVERY_S if stream.isatty() else LINE_EVERY_S
            )
            bar.start_t -= time.monotonic() - begun_s
            bar.n = done
            bar.refresh()

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()
