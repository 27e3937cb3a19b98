"""Tools and tool choice of ``POST /v1/responses``: conversion, and repetition in the answer.

The answer repeats all fields of functions, custom tools, namespaces, web searches, MCP servers and
code interpreters, with null for missing ones, then unknown fields; it repeats other tools
unchanged. A tool of an unknown type is reported as an invalid function, the first type that vLLM
tries.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard, cast

import msgspec
from msgspec import Struct

from app.core.base.clock.pause import Slices
from app.core.protocol.coercion import ConversionError, JsonObject
from app.core.protocol.convert import convert
from app.core.protocol.options import FunctionDefinition
from app.core.protocol.rules import get_field
from app.core.server.http.errors import bad_request

ToolParam = JsonObject
TOOL_STEPS = 4
"""Work of converting a tool, in steps of `Slices`."""
UNCONVERTED_TYPES = frozenset(
    (
        "file_search",
        "computer",
        "computer_use_preview",
        "image_generation",
        "local_shell",
        "shell",
        "tool_search",
        "apply_patch",
        "programmatic_tool_calling",
    )
)
"""Types of tools that the answer repeats unchanged."""
CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        CUSTOM_INPUT: {"type": "string", "description": "The text that the tool is given."}
    },
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
"""Schema of the function that stands for a custom tool in the model's prompt."""


def convert_tools(value: object) -> list[ToolParam]:
    """Returns the tools in the form that the answer repeats.

    Raises:
        ConversionError: A tool is invalid.
    """
    if not isinstance(value, list):
        raise ConversionError("a list of tools", kind="list_type")
    slices = Slices()
    tools: list[ToolParam] = []
    for index, tool in enumerate(value):
        tools.append(_convert_tool(index, tool))
        slices.spend(TOOL_STEPS)
    return tools


def _convert_tool(index: int, tool: object) -> ToolParam:
    from app.extensions.responses import tool_types  # few requests have tools

    if isinstance(tool, dict):
        kind = tool.get("type")
        if isinstance(kind, str) and kind in UNCONVERTED_TYPES:
            return tool
    try:
        return _convert_by_type(tool_types.tool_structs(), tool)
    except ConversionError:
        pass
    try:
        convert(tool_types.FunctionTool, tool)
    except ConversionError as error:
        raise error.prefixed("FunctionTool").prefixed(index) from None
    raise AssertionError("the server rejected a valid function")


def convert_tool_choice(value: object) -> str | JsonObject:
    """Returns the choice in the form that the answer repeats.

    Raises:
        ConversionError: The choice is invalid; the error has no path.
    """
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    from app.extensions.responses.tool_types import choice_structs  # few requests name a tool

    try:
        return _convert_by_type(choice_structs(), value)
    except ConversionError:
        raise ConversionError(
            "none, auto, required, or an object that names a tool", kind="literal_error"
        ) from None


def _convert_by_type(structs: Mapping[str, type[Struct]], value: object) -> JsonObject:
    kind = get_field(value, "type")
    if not isinstance(kind, str) or kind not in structs:
        raise ConversionError("a known type", kind="literal_error")
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


def custom_input(arguments: str) -> str:
    """Returns the text argument of a custom tool's call, or `arguments` if it has none."""
    try:
        fields = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = get_field(fields, CUSTOM_INPUT)
    return text if isinstance(text, str) else arguments


class CalledTool(NamedTuple):
    """The answer's name of a called function, which differs from the model's."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def callable_functions(
    tools: Sequence[ToolParam],
) -> Iterator[tuple[FunctionDefinition, CalledTool]]:
    """Yields the functions in the model's prompt, with their names in the answer.

    A custom tool becomes a function with a text argument.
    """
    for tool in tools:
        kind = tool["type"]
        name = str(tool.get("name"))
        if kind == "function":
            yield msgspec.convert(tool, FunctionDefinition), CalledTool(name)
        elif kind == "custom":
            function = FunctionDefinition(
                name=name,
                description=cast(str | None, tool["description"]),
                parameters=CUSTOM_PARAMETERS,
            )
            yield function, CalledTool(name, is_custom=True)
        elif kind == "namespace":
            yield from _namespace_functions(name, cast(list[JsonObject], tool["tools"]))


def _namespace_functions(
    namespace: str, members: Sequence[JsonObject]
) -> Iterator[tuple[FunctionDefinition, CalledTool]]:
    slices = Slices()
    for member in members:
        slices.spend()
        if member["type"] == "function":
            name = str(member["name"])
            renamed = {**member, "name": flat_name(namespace, name)}
            yield msgspec.convert(renamed, FunctionDefinition), CalledTool(name, namespace)


def called_tools(tools: Sequence[ToolParam]) -> Mapping[str, CalledTool]:
    """Maps the model's names of functions to the answer's."""
    return {function.name: called for function, called in callable_functions(tools)}


def is_named_choice(choice: object) -> TypeGuard[JsonObject]:
    """Returns true for the choice of one function or custom tool."""
    return isinstance(choice, dict) and choice.get("type") in ("function", "custom")


def check_tool_use(tools: object, choice: object) -> None:
    """Raises `ApiError` for a choice without a matching tool, and for unsupported tools."""
    if isinstance(tools, int | float):
        raise bad_request("tools must be a list")
    if not tools:
        if is_named_choice(choice) or choice == "required":
            raise bad_request("tool_choice requires a call, but there are no tools", "tool_choice")
        return
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "custom":
            continue
        input_format = tool.get("format")
        if isinstance(input_format, dict) and input_format.get("type") == "grammar":
            raise bad_request("Custom tools support only free text, not a grammar.", "tools")
    if is_named_choice(choice):
        resolve_choice(choice, tools)


def resolve_choice(choice: JsonObject, tools: object) -> JsonObject:
    """Returns the choice of one tool with its full name; a unique short name suffices.

    Raises:
        ApiError: There is no such tool, or several namespaces have it.
    """
    name = choice.get("name")
    if isinstance(name, list | dict) and name:
        raise bad_request("tool_choice.name must be a string")
    full_names: set[str] = set()
    matches_in_namespaces: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            full_names.add(str(tool.get("name")) if isinstance(tool, dict) else "")
            continue
        namespace = tool.get("name")
        members = tool.get("tools")
        if not isinstance(members, list) or not isinstance(namespace, str):
            return choice  # the schema rejects these tools
        short_names = [member.get("name") for member in members if isinstance(member, dict)]
        full_names.update(flat_name(namespace, str(short_name)) for short_name in short_names)
        matches_in_namespaces += [flat_name(namespace, str(name))] * short_names.count(name)
    if name and name in full_names:
        return choice
    if not name or not matches_in_namespaces:
        raise bad_request("tool_choice names a tool that is not in tools", "tool_choice")
    if len(matches_in_namespaces) > 1:
        listed = ", ".join(matches_in_namespaces)
        raise bad_request(
            f"tool_choice names a function of several namespaces: {listed}", "tool_choice"
        )
    return {**choice, "name": matches_in_namespaces[0]}


def flat_name(namespace: str, name: str) -> str:
    """Returns the model's name of a function in a namespace."""
    return f"{namespace}__{name}"
