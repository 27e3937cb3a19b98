"""Makes the residuals that intervals come from: measured over simulated, for each measured cell.

    python -m benchmarks.cells ../shared/truth/cells --out cells.jsonl
    python -m benchmarks.residuals cells.jsonl ../shared/truth/cells

The result is app/extensions/costs/known_errors.json; `python -m benchmarks.coverage` tests it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from math import log
from pathlib import Path

import msgspec

from app.extensions.costs.error_model import TABLE, KnownError, Situation
from app.extensions.costs.situations import make_situation
from benchmarks.cells import Cell, read_config

FAMILIES = {"minimax": "MiniMaxM2"}
"""Beginning of a model's name -> family, where the file of its shape declares another one."""


class JudgedCell(Cell, frozen=True, kw_only=True):
    """A line of `benchmarks.cells --out`: a cell with its errors."""

    tpot: float | None
    ttft: float | None
    refusal: str


def residuals(path: Path, folder: Path) -> Iterator[KnownError]:
    """Yields the residuals of the cells that were simulated."""
    for line in path.read_bytes().splitlines():
        cell = msgspec.json.decode(line, type=JudgedCell)
        if cell.refusal:
            continue
        yield KnownError(
            situation=situation_of(cell, folder),
            group=cell.group,
            tpot=log_ratio(cell.tpot),
            ttft=log_ratio(cell.ttft),
        )


def situation_of(cell: JudgedCell, folder: Path) -> Situation:
    """Returns the situation of a cell."""
    config = read_config(folder, cell)
    situation = make_situation(config, cell.device, cell.options)
    for prefix, family in FAMILIES.items():
        if cell.model.startswith(prefix):
            situation = msgspec.structs.replace(situation, family=family)
    return msgspec.structs.replace(
        situation,
        concurrency=float(cell.concurrency),
        input_tokens=float(cell.input_tokens),
        output_tokens=float(cell.output_tokens),
    )


def log_ratio(error: float | None) -> float | None:
    """Returns the logarithm of measured over simulated; `error` is simulated over measured - 1."""
    return None if error is None else round(-log(1 + error), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=Path, help="result of benchmarks.cells --out")
    parser.add_argument("folder", type=Path, help="folder with models")
    options = parser.parse_args()
    errors = list(residuals(options.cells, options.folder))
    lines = b",\n".join(msgspec.json.encode(error) for error in errors)
    TABLE.write_bytes(b"[\n" + lines + b"\n]\n")
    print(f"{len(errors)} residuals")


if __name__ == "__main__":
    main()
