"""Ranges and sizes of drawn values, for choices that a schema leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from config.settings import ToolSettings


class Size(IntEnum):
    LEAST = 0
    """Few characters, and empty objects where allowed."""
    BRIEF = 1
    """Few characters."""
    FRUGAL = 2
    """No optional parts, but no empty objects either."""
    USUAL = 3


@dataclass(frozen=True, slots=True)
class Ranges:
    """Inclusive ranges, and chances from 0 to 1.

    `optional_property` is the chance of an optional property at the top, `optional_field` in nested objects.
    """

    integers: tuple[int, int] = (0, 100)
    numbers: tuple[float, float] = (0.0, 100.0)
    array_lengths: tuple[int, int] = (1, 5)
    optional_property: float = 0.5
    optional_field: float = 0.5

    @classmethod
    def of(cls, settings: ToolSettings) -> Ranges:
        return cls(
            (settings.min_tool_call_integer_param, settings.max_tool_call_integer_param),
            (settings.min_tool_call_number_param, settings.max_tool_call_number_param),
            (settings.min_tool_call_array_param_length, settings.max_tool_call_array_param_length),
            settings.tool_call_not_required_param_probability / 100,
            settings.object_tool_call_not_required_field_probability / 100,
        )
