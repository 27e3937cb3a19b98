"""The interface through which arrays and objects draw their parts."""

from collections.abc import Sequence
from random import Random
from typing import Protocol

from app.extensions.forms.schema.bounds import Size, WorkBudget
from app.extensions.forms.schema.keywords import JSON, Schema
from config.settings import ToolSettings


class ValueDraw(Protocol):
    """Draws the parts of a value; `usual` has the ranges where the schema leaves the choice."""

    rng: Random
    usual: ToolSettings
    budget: WorkBudget

    def draw_value(self, schemas: Sequence[Schema], depth: int = 0, name: str = "") -> JSON:
        """Returns a value that all of `schemas` accept; raises UnsatisfiableError without one."""

    def is_small(self, depth: int, limit: Size = Size.USUAL) -> bool:
        """Returns True if values at `depth` are to be small."""

    def accepts(self, value: JSON, *schemas: Schema) -> bool:
        """Returns True if all of `schemas` accept `value`."""
