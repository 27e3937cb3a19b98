"""What a step costs, from a table of one's own: tokens of a step, and its milliseconds.

python -m app simulate --plugin examples/plugins/step_table.py --rate 2 --seconds 60
python -m app --plugin examples/plugins/step_table.py --timing steps
"""

import csv
from bisect import bisect_left
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

from app.plugins import About, Batch, CostModel, PluginHost, Section, hookimpl

API = 1
VERSION = "1.0"
USUAL = "tokens,ms\n1,10\n256,14\n1024,40\n8192,300\n"


class Settings(Section, frozen=True, kw_only=True):
    """A table of step costs."""

    file: Annotated[
        str, About("A CSV file with the columns tokens and ms; empty is an example.", path=True)
    ] = ""


class Table:
    """Seconds of a step by its tokens:

    on a line between two rows, and on that of the last two beyond.
    """

    def __init__(self, text: str) -> None:
        rows = sorted(
            (int(row["tokens"]), float(row["ms"]) / 1000) for row in csv.DictReader(StringIO(text))
        )
        if len(rows) < 2:
            raise ValueError("the table needs two rows at least")
        self._rows = rows
        self._tokens = [tokens for tokens, _ in rows]

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        place = min(max(bisect_left(self._tokens, batch.tokens), 1), len(self._rows) - 1)
        (low, low_s), (high, high_s) = self._rows[place - 1 : place + 1]
        return max(0.0, low_s + (high_s - low_s) * (batch.tokens - low) / (high - low))


@hookimpl
def step_cost(host: PluginHost) -> CostModel:
    file = host.settings.file
    return Table(Path(file).read_text("utf-8") if file else USUAL)
