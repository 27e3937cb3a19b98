"""Coverage of the 80 % intervals, leaving out one group of cells at a time.

`python -m benchmarks.coverage` needs nothing but the residuals that are shipped. A group has one
model, device, parallelism and version; its cells are judged by the residuals of all other groups.
With `--other-loads`, they are judged by those of all other loads: the server itself was measured.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import exp
from statistics import median

from msgspec import Struct

from app.extensions.costs.error_model import ErrorModel, KnownError, read_errors

LARGE_GROUP = 30
"""A group with more cells must have a coverage of its own."""


class GroupCoverage(Struct, frozen=True):
    """Coverage of one group."""

    name: str
    cells: int
    inside: int
    half_widths: list[float]
    errors: list[float]

    @property
    def half_width(self) -> float:
        """Median half width, as a share."""
        return exp(median(self.half_widths)) - 1

    @property
    def error(self) -> float:
        """Median error of the simulation, as a share."""
        return exp(median(self.errors)) - 1

    @property
    def is_large(self) -> bool:
        """True for a group with more than `LARGE_GROUP` cells."""
        return self.cells > LARGE_GROUP


class Coverage(Struct, frozen=True):
    """Coverage of one figure over all groups."""

    groups: list[GroupCoverage]

    @property
    def share(self) -> float:
        """Share of the cells inside of their interval."""
        return sum(group.inside for group in self.groups) / sum(
            group.cells for group in self.groups
        )

    @property
    def worst_large_group(self) -> float:
        """Least share of a large group; 1 without one."""
        shares = [group.inside / group.cells for group in self.groups if group.is_large]
        return min(shares, default=1.0)

    @property
    def max_width_ratio(self) -> float:
        """Greatest ratio of half width and error of a large group; 0 without one."""
        ratios = [group.half_width / group.error for group in self.groups if group.is_large]
        return max(ratios, default=0.0)

    @property
    def half_width(self) -> float:
        """Median half width, as a share."""
        return exp(median(width for group in self.groups for width in group.half_widths)) - 1

    @property
    def error(self) -> float:
        """Median error of the simulation, as a share."""
        return exp(median(error for group in self.groups for error in group.errors)) - 1


def leave_one_group_out(errors: Sequence[KnownError], figure: str) -> Coverage:
    """Returns the coverage of a figure's intervals for servers of which nothing is known."""
    groups = []
    for name, cells in _groups(errors, figure):
        model = ErrorModel([error for error in errors if error.group != name])
        groups.append(_coverage(name, cells, [model] * len(cells), figure))
    return Coverage(groups)


def leave_one_load_out(errors: Sequence[KnownError], figure: str) -> Coverage:
    """Returns the coverage for servers that were measured under other loads."""
    groups = []
    for name, cells in _groups(errors, figure):
        models = {
            situation: ErrorModel(
                [error for error in errors if error.group != name or error.situation != situation]
            )
            for situation in {cell.situation for cell in cells}
        }
        if len(models) > 1:
            groups.append(_coverage(name, cells, [models[c.situation] for c in cells], figure))
    return Coverage(groups)


def _groups(
    errors: Sequence[KnownError], figure: str
) -> Iterator[tuple[str, Sequence[KnownError]]]:
    """Yields the groups and their cells with the figure, by name."""
    by_group: dict[str, list[KnownError]] = defaultdict(list)
    for error in errors:
        if error.residual(figure) is not None:
            by_group[error.group].append(error)
    yield from sorted(by_group.items())


def _coverage(
    name: str, cells: Sequence[KnownError], models: Sequence[ErrorModel], figure: str
) -> GroupCoverage:
    """Returns the coverage of a group, each of whose cells is judged by a model."""
    half_widths = []
    residuals = []
    inside = 0
    for cell, model in zip(cells, models, strict=True):
        spread = model.spread(cell.situation, figure)
        residual = cell.residual(figure)
        assert residual is not None
        half_widths.append(spread.half_width)
        residuals.append(abs(residual))
        inside += abs(residual - spread.center) <= spread.half_width
    return GroupCoverage(name, len(cells), inside=inside, half_widths=half_widths, errors=residuals)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--other-loads", action="store_true", help="judge by all other loads")
    options = parser.parse_args()
    leave_out = leave_one_load_out if options.other_loads else leave_one_group_out
    errors = read_errors()
    for figure in ("tpot", "ttft"):
        coverage = leave_out(errors, figure)
        print(f"{figure}: {coverage.share:.0%} inside, worst large group", end=" ")
        print(
            f"{coverage.worst_large_group:.0%}, median half width {coverage.half_width:.1%}", end=""
        )
        print(f", median error {coverage.error:.1%}", end="")
        print(f", widest large group {coverage.max_width_ratio:.2f} times its error")
        for group in coverage.groups:
            print(f"  {group.inside}/{group.cells}", end=" ")
            print(f"half width {group.half_width:.1%}, error {group.error:.1%}: {group.name}")


if __name__ == "__main__":
    main()
