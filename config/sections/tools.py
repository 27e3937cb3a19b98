"""Tool calls and structured output."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import at_least, between, not_below


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Tool calls and structured output: which values are drawn where the schema leaves a choice."""

    min_tool_call_integer_param: int = setting(
        0, live=True, help="Smallest integer drawn where the schema gives no range."
    )
    max_tool_call_integer_param: int = setting(
        100,
        live=True,
        help="Largest integer drawn where the schema gives no range.",
        rule=not_below("min_tool_call_integer_param"),
    )
    min_tool_call_number_param: float = setting(
        0.0, live=True, help="Smallest number drawn where the schema gives no range."
    )
    max_tool_call_number_param: float = setting(
        100.0,
        live=True,
        help="Largest number drawn where the schema gives no range.",
        rule=not_below("min_tool_call_number_param"),
    )
    min_tool_call_array_param_length: int = setting(
        1, live=True, help="Fewest items of an array whose schema does not say.", rule=at_least(0)
    )
    max_tool_call_array_param_length: int = setting(
        5,
        live=True,
        help="Most items of an array whose schema does not say.",
        rule=not_below("min_tool_call_array_param_length"),
    )
    tool_call_not_required_param_probability: int = setting(
        50, unit="%", live=True, help="Chance of a parameter that is not required.", rule=between(0, 100)
    )
    object_tool_call_not_required_field_probability: int = setting(
        50,
        unit="%",
        live=True,
        help="Chance of a field of a nested object that is not required.",
        rule=between(0, 100),
    )
    tool_call_extra_call_probability: int = setting(
        45,
        unit="%",
        live=True,
        help="Chance of one more call, asked again after each, up to one call a tool.",
        rule=between(0, 100),
    )
    skip_tool_validation: bool = setting(
        False, live=True, help="Take tools whose schema is wrong; what cannot be understood is left out."
    )
    strict_tool_schemas: bool = setting(
        False,
        live=True,
        help="Refuse tools whose schema uses keywords beyond those of the reference simulator.",
    )
    tool_call_room: int = setting(
        96,
        unit="tokens",
        live=True,
        help="A required call under a smaller limit of tokens is cut off before it is a call, and one that "
        "is only allowed is not begun; 0 lets every call be made whole.",
        rule=at_least(0),
    )
