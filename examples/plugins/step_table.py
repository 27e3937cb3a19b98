"""Step costs from a table: tokens of a step, and its milliseconds.

understudy simulate --plugin examples/plugins/step_table.py --rate 2 --seconds 60
understudy --plugin examples/plugins/step_table.py --timing steps
"""

import csv
from bisect import bisect_left
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

from app.plugins import About, Batch, CostModel, Plugin, Profile, Section

API = 2
VERSION = "1.0"
EXAMPLE = "tokens,ms\n1,10\n256,14\n1024,40\n8192,300\n"


class TableSettings(Section, frozen=True, kw_only=True):
    """A table of step costs."""

    file: Annotated[
        str,
        About("A CSV file with the columns tokens and ms; empty selects an example."),
    ] = ""


class StepTable:
    """Interpolates the seconds of a step by its tokens, and extrapolates the last two rows."""

    def __init__(self, text: str) -> None:
        rows = sorted(
            (int(row["tokens"]), float(row["ms"]) / 1000) for row in csv.DictReader(StringIO(text))
        )
        if len(rows) < 2:
            raise ValueError("the table needs two rows at least")
        self._rows = rows
        self._tokens = [tokens for tokens, _ in rows]

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        """Returns the seconds of a step."""
        index = min(max(bisect_left(self._tokens, batch.tokens), 1), len(self._rows) - 1)
        low_tokens, low_s = self._rows[index - 1]
        high_tokens, high_s = self._rows[index]
        slope = (high_s - low_s) / (high_tokens - low_tokens)
        return max(0.0, low_s + slope * (batch.tokens - low_tokens))


class StepTablePlugin(Plugin):
    """Reads the costs of steps from a table."""

    name = "step-table"
    Settings = TableSettings

    def step_cost(self, profile: Profile) -> CostModel:
        """Returns the table."""
        file = self.settings.file
        return StepTable(Path(file).read_text("utf-8") if file else EXAMPLE)


EXTENSION = StepTablePlugin
