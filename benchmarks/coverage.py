"""Coverage of the 80 % intervals, leaving out one group of cells at a time.

`python -m benchmarks.coverage` needs nothing but the residuals that are shipped. A group has one
model, device, parallelism and version; its cells are judged by the residuals of all other groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import exp
from statistics import median

from msgspec import Struct

from app.extensions.lab.costs.error_model import ErrorModel, KnownError, read_errors

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
        """Least share of a group of more than `LARGE_GROUP` cells; 1 without one."""
        shares = [group.inside / group.cells for group in self.groups if group.cells > LARGE_GROUP]
        return min(shares, default=1.0)

    @property
    def half_width(self) -> float:
        """Median half width, as a share."""
        return exp(median(width for group in self.groups for width in group.half_widths)) - 1

    @property
    def error(self) -> float:
        """Median error of the simulation, as a share."""
        return exp(median(error for group in self.groups for error in group.errors)) - 1


def leave_one_group_out(errors: Sequence[KnownError], figure: str) -> Coverage:
    """Returns the coverage of a figure's intervals."""
    by_group: dict[str, list[tuple[KnownError, float]]] = defaultdict(list)
    for error in errors:
        residual = error.residual(figure)
        if residual is not None:
            by_group[error.group].append((error, residual))
    groups = []
    for name, cells in sorted(by_group.items()):
        model = ErrorModel([error for error in errors if error.group != name])
        half_widths = []
        inside = 0
        for error, residual in cells:
            spread = model.spread(error.situation, figure)
            half_widths.append(spread.half_width)
            inside += abs(residual - spread.center) <= spread.half_width
        absolute = [abs(residual) for _, residual in cells]
        groups.append(
            GroupCoverage(name, len(cells), inside=inside, half_widths=half_widths, errors=absolute)
        )
    return Coverage(groups)


def main() -> None:
    errors = read_errors()
    for figure in ("tpot", "ttft"):
        coverage = leave_one_group_out(errors, figure)
        print(f"{figure}: {coverage.share:.0%} inside, worst large group", end=" ")
        print(
            f"{coverage.worst_large_group:.0%}, median half width {coverage.half_width:.1%}", end=""
        )
        print(f", median error {coverage.error:.1%}")
        for group in coverage.groups:
            print(f"  {group.inside}/{group.cells}", end=" ")
            print(f"half width {group.half_width:.1%}, error {group.error:.1%}: {group.name}")


if __name__ == "__main__":
    main()
