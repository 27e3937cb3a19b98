"""Errors of computed profiles where the model on the device was not seen by the fit.

    python research/leave_one_out.py ../shared/truth/cells --out left-out.jsonl

Each group (a model on a device) is left out in turn: the corrections of `research/fit_versions.py`
are fitted to the cells of all other groups, and the cells of the group are simulated with them.
`--out` has the format of `benchmarks.cells --out`.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.cells import (
    REQUESTS_A_PLACE,
    Cell,
    Result,
    append_results,
    compare,
    read_cells,
    row,
)
from research.fit_versions import SHIPPED, fit, fitted_groups, key_of_adjustment, use


def judge(folder: Path, a_place: int, group: tuple[str, str]) -> tuple[list[Cell], list[Result]]:
    """Returns the cells of a group and their errors with corrections of the other groups."""
    cells = list(read_cells(folder))
    others = [cell for cell in cells if (cell.model, cell.device) != group]
    all_groups = fitted_groups(cells, folder)
    table = []
    for key, chosen in fitted_groups(others, folder).items():
        if chosen == all_groups.get(key):
            # Its cells are those of the shipped table.
            table += [kept for kept in SHIPPED if key_of_adjustment(kept) == key]
        else:
            table.append(fit(key, chosen, folder))
    use(table)
    left_out = [cell for cell in cells if (cell.model, cell.device) == group]
    return left_out, [compare(folder, a_place, cell) for cell in left_out]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--a-place", type=int, default=REQUESTS_A_PLACE, help="requests for each in flight"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write each cell with its errors as JSON lines")
    options = parser.parse_args()
    sizes: dict[tuple[str, str], int] = defaultdict(int)
    for cell in read_cells(options.folder):
        sizes[cell.model, cell.device] += 1
    largest_first = sorted(sizes, key=lambda group: -sizes[group])
    cells: list[Cell] = []
    results: list[Result] = []
    judge_group = partial(judge, options.folder, options.a_place)
    with ProcessPoolExecutor(options.processes) as pool:
        judged = dict(zip(largest_first, pool.map(judge_group, largest_first), strict=True))
    print("| left out | number | TPOT median % | p90 % | bias % | TTFT median % | p90 % | bias % |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for (model, device), (group_cells, group_results) in sorted(judged.items()):
        print(row(f"{model}, {device}", group_results))
        cells += group_cells
        results += group_results
    print(row("all", results))
    refused = sum(bool(result.refusal) for result in results)
    print(f"refused: {refused}")
    if options.out is not None:
        options.out.write_bytes(b"")
        append_results(options.out, cells, results)


if __name__ == "__main__":
    main()
