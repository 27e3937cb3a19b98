"""Tools and tool choice of ``POST /v1/responses``: repetition in the answer.

The answer repeats all fields of a tool, with null for missing ones, then unknown fields. A tool of
an unknown type is reported as an invalid function, the first type that vLLM tries.
"""

from collections.abc import Mapping

from msgspec import Struct

from app.core.base.clock.pause import Slices
from app.core.protocol.coercion import ConversionError, JsonObject
from app.core.protocol.convert import convert
from app.core.protocol.rules import get_field
from app.extensions.responses import tool_types

TOOL_STEPS = 4
"""Work of converting a tool, in steps of `Slices`."""


def convert_tools(value: object) -> list[JsonObject]:
    """Returns the tools in the form that the answer repeats.

    Raises:
        ConversionError: A tool is invalid.
    """
    if not isinstance(value, list):
        raise ConversionError("a list of tools", kind="list_type")
    slices = Slices()
    tools: list[JsonObject] = []
    for index, tool in enumerate(value):
        tools.append(_convert_tool(index, tool))
        slices.spend(TOOL_STEPS)
    return tools


def _convert_tool(index: int, tool: object) -> JsonObject:
    try:
        return _convert_by_type(tool_types.tool_structs(), tool)
    except ConversionError:
        pass
    try:
        convert(tool_types.FunctionTool, tool)
    except ConversionError as error:
        raise error.prefixed("FunctionTool").prefixed(index) from None
    raise AssertionError("the server rejected a function even though it is valid")


def convert_tool_choice(value: object) -> JsonObject:
    """Returns the choice of tools, an object, in the form that the answer repeats.

    Raises:
        ConversionError: The choice is invalid; the error has no path.
    """
    try:
        return _convert_by_type(tool_types.choice_structs(), value)
    except ConversionError:
        raise ConversionError(
            "none, auto, required, or an object that names a tool", kind="literal_error"
        ) from None


def _convert_by_type(structs: Mapping[str, type[Struct]], value: object) -> JsonObject:
    kind = get_field(value, "type")
    if not isinstance(kind, str) or kind not in structs:
        raise ConversionError("an object of a known type", kind="literal_error")
    repeated = _repeat(convert(structs[kind], value), value)
    assert isinstance(repeated, dict)
    return repeated


def _repeat(converted: object, original: object) -> object:
    """Returns a converted value as JSON, followed by unknown keys of the original one."""
    if isinstance(converted, list) and isinstance(original, list):
        return _repeat_items(converted, original)
    if not isinstance(converted, Struct) or not isinstance(original, dict):
        return converted
    repeated: JsonObject = {}
    names = zip(converted.__struct_fields__, converted.__struct_encode_fields__, strict=True)
    for name, key in names:
        repeated[key] = _repeat(getattr(converted, name), original.get(key))
    return repeated | {key: value for key, value in original.items() if key not in repeated}


def _repeat_items(converted: list[object], originals: list[object]) -> list[object]:
    slices = Slices()
    repeated: list[object] = []
    for item, original in zip(converted, originals, strict=True):
        repeated.append(_repeat(item, original))
        slices.spend(TOOL_STEPS)
    return repeated
