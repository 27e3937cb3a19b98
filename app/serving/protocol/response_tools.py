"""Tools and tool choice of ``POST /v1/responses``: conversion, and repetition in the answer.

The answer repeats every field of a tool's type, with null for missing fields, and unknown fields at the end.
A tool of no known type is reported as a wrong function, the first type that vLLM tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import GenericAlias, NoneType
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec
from msgspec import NODEFAULT, Struct

from app.serving.http.errors import bad_request
from app.serving.protocol.coercion import JsonObject, Misfit, convert
from app.serving.protocol.options import FunctionDefinition


def _kind(title: str, /, **fields: object) -> Any:
    """Builds a struct of `fields`; nullable fields are optional."""
    rows: list[Any] = [
        (key, hint, None if NoneType in get_args(hint) or hint is object else NODEFAULT)
        for key, hint in fields.items()
    ]
    return msgspec.defstruct(title, rows, kw_only=True, rename={"is_async": "async"})


def _list(hint: Any) -> Any:
    return GenericAlias(list, (hint,))


TEXT, TEXTS, FLAG, OBJECT, COUNT = str | None, list[str] | None, bool | None, JsonObject | None, int | None
CALLERS = list[Literal["direct", "programmatic"]] | None
SIZE = Literal["low", "medium", "high"] | None
_LATER = {"allowed_callers": CALLERS, "is_async": FLAG, "defer_loading": FLAG, "description": TEXT}

FUNCTION = _kind(
    "FunctionTool",
    name=str,
    parameters=OBJECT,
    strict=FLAG,
    type=Literal["function"],
    **_LATER,
    output_schema=OBJECT,
)
_FORMAT = _kind("CustomToolFormat", type=Literal["text"])
_CUSTOM = _kind("CustomTool", name=str, type=Literal["custom"], **_LATER, format=_FORMAT | None)
_MEMBER = _kind(
    "NamespaceFunction",
    name=str,
    type=Literal["function"],
    **_LATER,
    output_schema=OBJECT,
    parameters=object,
    strict=FLAG,
)
_NAMESPACE = _kind(
    "NamespaceTool", description=str, name=str, tools=_list(_MEMBER | _CUSTOM), type=Literal["namespace"]
)
_COMPARISON = _kind(
    "ComparisonFilter",
    key=str,
    type=Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"],
    value=str | float | bool | list[str | float],
)
_COMPOUND = _kind("CompoundFilter", filters=list[object], type=Literal["and", "or"])
_HYBRID = _kind("HybridSearch", embedding_weight=float, text_weight=float)
_RANKING = _kind(
    "RankingOptions",
    hybrid_search=_HYBRID | None,
    ranker=Literal["auto", "default-2024-11-15"] | None,
    score_threshold=float | None,
)
_FILE_SEARCH = _kind(
    "FileSearchTool",
    type=Literal["file_search"],
    vector_store_ids=list[str],
    filters=_COMPARISON | _COMPOUND | None,
    max_num_results=COUNT,
    ranking_options=_RANKING | None,
)
_COMPUTER_PREVIEW = _kind(
    "ComputerUsePreviewTool",
    display_height=int,
    display_width=int,
    environment=Literal["windows", "mac", "linux", "ubuntu", "browser"],
    type=Literal["computer_use_preview"],
)
_PLACE = {"city": TEXT, "country": TEXT, "region": TEXT, "timezone": TEXT}
_WEB_SEARCH = _kind(
    "WebSearchTool",
    type=Literal["web_search", "web_search_2025_08_26"],
    external_web_access=FLAG,
    filters=_kind("WebSearchFilters", allowed_domains=TEXTS) | None,
    search_context_size=SIZE,
    user_location=_kind("UserLocation", **_PLACE, type=Literal["approximate"] | None) | None,
)
_WEB_SEARCH_PREVIEW = _kind(
    "WebSearchPreviewTool",
    type=Literal["web_search_preview", "web_search_preview_2025_03_11"],
    search_content_types=list[Literal["text", "image"]] | None,
    search_context_size=SIZE,
    user_location=_kind("UserLocation", type=Literal["approximate"], **_PLACE) | None,
)
_MCP_FILTER = _kind("McpToolFilter", read_only=FLAG, tool_names=TEXTS)
_MCP = _kind(
    "Mcp",
    server_label=str,
    type=Literal["mcp"],
    allowed_callers=CALLERS,
    allowed_tools=list[str] | _MCP_FILTER | None,
    authorization=TEXT,
    connector_id=Literal[
        "connector_dropbox",
        "connector_gmail",
        "connector_googlecalendar",
        "connector_googledrive",
        "connector_microsoftteams",
        "connector_outlookcalendar",
        "connector_outlookemail",
        "connector_sharepoint",
    ]
    | None,
    defer_loading=FLAG,
    headers=dict[str, str] | None,
    require_approval=_kind("McpApproval", always=_MCP_FILTER | None, never=_MCP_FILTER | None)
    | Literal["always", "never"]
    | None,
    server_description=TEXT,
    server_url=TEXT,
    tunnel_id=TEXT,
)
_SECRET = _kind("DomainSecret", domain=str, name=str, value=str)
_NETWORK = (
    _kind("NetworkDisabled", type=Literal["disabled"])
    | _kind(
        "NetworkAllowlist",
        allowed_domains=list[str],
        type=Literal["allowlist"],
        domain_secrets=_list(_SECRET) | None,
    )
    | None
)
_CONTAINER = {
    "file_ids": TEXTS,
    "memory_limit": Literal["1g", "4g", "16g", "64g"] | None,
    "network_policy": _NETWORK,
}
_CODE_INTERPRETER = _kind(
    "CodeInterpreter",
    container=str | _kind("AutoContainer", type=Literal["auto"], **_CONTAINER),
    type=Literal["code_interpreter"],
    allowed_callers=CALLERS,
)
_SKILL = _kind("SkillReference", skill_id=str, type=Literal["skill_reference"], version=TEXT) | _kind(
    "InlineSkill",
    description=str,
    name=str,
    source=_kind("SkillSource", data=str, media_type=Literal["application/zip"], type=Literal["base64"]),
    type=Literal["inline"],
)
_LOCAL_SKILL = _kind("LocalSkill", description=str, name=str, path=str)
_SHELL = _kind(
    "FunctionShellTool",
    type=Literal["shell"],
    allowed_callers=CALLERS,
    environment=_kind(
        "ContainerAuto", type=Literal["container_auto"], **_CONTAINER, skills=_list(_SKILL) | None
    )
    | _kind("LocalEnvironment", type=Literal["local"], skills=_list(_LOCAL_SKILL) | None)
    | _kind("ContainerReference", container_id=str, type=Literal["container_reference"])
    | None,
)
_EFFORT = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
_SVG = _kind("Svg", model=TEXT, reasoning=_kind("SvgReasoning", effort=_EFFORT) | None)
_IMAGE_GENERATION = _kind(
    "ImageGeneration",
    type=Literal["image_generation"],
    action=Literal["generate", "edit", "auto"] | None,
    background=Literal["transparent", "opaque", "auto"] | None,
    complexity=SIZE,
    frame_count=COUNT,
    frame_duration_ms=COUNT,
    input_fidelity=Literal["high", "low"] | None,
    input_image_mask=_kind("ImageMask", file_id=TEXT, image_url=TEXT) | None,
    model=TEXT,
    moderation=Literal["auto", "low"] | None,
    output_compression=COUNT,
    output_format=Literal["png", "webp", "jpeg", "gif", "svg"] | None,
    partial_images=COUNT,
    quality=Literal["low", "medium", "high", "xhigh", "max", "auto"] | None,
    size=TEXT,
    svg=_SVG | None,
)
_TOOL_SEARCH = _kind(
    "ToolSearchTool",
    type=Literal["tool_search"],
    description=TEXT,
    execution=Literal["server", "client"] | None,
    parameters=object,
)
TOOLS: Mapping[str, type[Struct]] = {
    "function": FUNCTION,
    "file_search": _FILE_SEARCH,
    "computer": _kind("ComputerTool", type=Literal["computer"]),
    "computer_use_preview": _COMPUTER_PREVIEW,
    **dict.fromkeys(("web_search", "web_search_2025_08_26"), _WEB_SEARCH),
    "mcp": _MCP,
    "code_interpreter": _CODE_INTERPRETER,
    "programmatic_tool_calling": _kind("Programmatic", type=Literal["programmatic_tool_calling"]),
    "image_generation": _IMAGE_GENERATION,
    "local_shell": _kind("LocalShell", type=Literal["local_shell"]),
    "shell": _SHELL,
    "custom": _CUSTOM,
    "namespace": _NAMESPACE,
    "tool_search": _TOOL_SEARCH,
    **dict.fromkeys(("web_search_preview", "web_search_preview_2025_03_11"), _WEB_SEARCH_PREVIEW),
    "apply_patch": _kind("ApplyPatchTool", type=Literal["apply_patch"], allowed_callers=CALLERS),
}
"""Structs by type. Only functions, also in a namespace, and custom tools are ever called."""
_ALONE = (
    *("file_search", "web_search_preview", "computer", "computer_use_preview", "computer_use", "shell"),
    *("web_search_preview_2025_03_11", "image_generation", "code_interpreter", "apply_patch"),
    "programmatic_tool_calling",
)
CHOICES: Mapping[str, type[Struct]] = {
    "allowed_tools": _kind(
        "AllowedTools",
        mode=Literal["auto", "required"],
        tools=list[JsonObject],
        type=Literal["allowed_tools"],
    ),
    "function": _kind("ChosenFunction", name=str, type=Literal["function"]),
    "mcp": _kind("ChosenMcp", server_label=str, type=Literal["mcp"], name=TEXT),
    "custom": _kind("ChosenCustom", name=str, type=Literal["custom"]),
    **dict.fromkeys(_ALONE, _kind("ChosenType", type=str)),
}
"""Structs of `tool_choice` objects, by type."""


ToolParam = JsonObject


def convert_tools(value: object) -> list[ToolParam]:
    """Returns the tools in the form that the answer repeats. Raises `Misfit`."""
    if not isinstance(value, list):
        raise Misfit("a list of tools")
    return [_convert_tool(index, tool) for index, tool in enumerate(value)]


def _convert_tool(index: int, tool: object) -> ToolParam:
    try:
        return _converted(TOOLS, tool)
    except Misfit:
        pass
    try:
        convert(FUNCTION, tool)
    except Misfit as misfit:
        raise misfit.under("FunctionTool").under(index) from None
    raise AssertionError("a function that fits is one")


def convert_tool_choice(value: object) -> str | JsonObject:
    """Returns the choice in the form that the answer repeats. Raises `Misfit` without a path."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    try:
        return _converted(CHOICES, value)
    except Misfit:
        raise Misfit("none, auto, required, or an object that names a tool") from None


def _converted(kinds: Mapping[str, type[Struct]], value: object) -> JsonObject:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise Misfit("a type that is known")
    repeated = _repeated(convert(kinds[kind], value), value)
    assert isinstance(repeated, dict)
    return repeated


def _repeated(converted: object, given: object) -> object:
    """Returns a converted value as JSON, followed by unknown keys of the `given` one."""
    if isinstance(converted, list) and isinstance(given, list):
        return [_repeated(one, other) for one, other in zip(converted, given, strict=True)]
    if not isinstance(converted, Struct) or not isinstance(given, dict):
        return converted
    fields = msgspec.structs.fields(converted)
    told = {
        field.encode_name: _repeated(getattr(converted, field.name), given.get(field.encode_name))
        for field in fields
    }
    return told | {key: value for key, value in given.items() if key not in told}


CUSTOM_INPUT = "input"
"""Name of a custom tool's only argument in the model's prompt."""
CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The text that the tool is given."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def custom_input(arguments: str) -> str:
    """Returns the text argument of a custom tool's call; without one, `arguments` unchanged."""
    try:
        given = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = given.get(CUSTOM_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


class CalledTool(NamedTuple):
    """The answer's name of a called function, which differs from the model's."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def callable_functions(tools: Sequence[ToolParam]) -> Iterator[FunctionDefinition]:
    """Yields the functions in the model's prompt; a custom tool becomes a function with a text argument."""
    for tool in tools:
        kind, name = tool["type"], str(tool.get("name"))
        if kind == "function":
            yield msgspec.convert(tool, FunctionDefinition)
        elif kind == "custom":
            description = cast(str | None, tool["description"])
            yield FunctionDefinition(name=name, description=description, parameters=CUSTOM_PARAMETERS)
        for member in _members(tool):
            yield msgspec.convert(
                {**member, "name": flat_name(name, str(member["name"]))}, FunctionDefinition
            )


def called_tools(tools: Sequence[ToolParam]) -> Mapping[str, CalledTool]:
    """Maps the model's names of custom tools and namespace functions to the answer's."""
    called = {
        str(tool["name"]): CalledTool(str(tool["name"]), None, True)
        for tool in tools
        if tool["type"] == "custom"
    }
    for tool in tools:
        for member in _members(tool):
            namespace, name = str(tool["name"]), str(member["name"])
            called[flat_name(namespace, name)] = CalledTool(name, namespace)
    return called


def _members(tool: ToolParam) -> Iterator[JsonObject]:
    members = tool["tools"] if tool["type"] == "namespace" else ()
    assert isinstance(members, list | tuple)
    yield from (member for member in members if member["type"] == "function")


def check_tool_use(tools: object, choice: object) -> None:
    """Raises `ApiError` for a choice without a matching tool, and for unsupported tools."""
    if isinstance(tools, int | float):
        raise bad_request("tools must be a list")
    named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
    if not tools:
        if named or choice == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
        return
    for tool in tools if isinstance(tools, list) else ():
        form = tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else None
        if isinstance(form, dict) and form.get("type") == "grammar":
            raise bad_request("Custom tools take free text here, no grammar.", "tools")
    if isinstance(choice, dict) and named:
        resolve_choice(choice, tools)


def resolve_choice(choice: JsonObject, tools: object) -> JsonObject:
    """Returns the choice of one tool with its full name. Raises `ApiError`.

    A namespace function's short name suffices if unique.
    """
    name, full_names = choice.get("name"), set[str]()
    if isinstance(name, list | dict) and name:
        raise bad_request("tool_choice.name must be a string")
    within_namespaces: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            full_names.add(str(tool.get("name")) if isinstance(tool, dict) else "")
            continue
        namespace, members = tool.get("name"), tool.get("tools")
        if not isinstance(members, list) or not isinstance(namespace, str):
            return choice  # the schema refuses these tools
        names = [member.get("name") for member in members if isinstance(member, dict)]
        full_names.update(flat_name(namespace, str(member)) for member in names)
        within_namespaces += [flat_name(namespace, str(name)) for member in names if name == member]
    if name and name in full_names:
        return choice
    if not name or not within_namespaces:
        raise bad_request("tool_choice names a tool that is not among tools", "tool_choice")
    if len(within_namespaces) > 1:
        found = ", ".join(within_namespaces)
        raise bad_request(f"tool_choice names a function of several namespaces: {found}", "tool_choice")
    return {**choice, "name": within_namespaces[0]}


def flat_name(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"
