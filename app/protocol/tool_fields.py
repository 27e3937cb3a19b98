"""The fields of every tool, and of every choice of one, that ``POST /v1/responses`` takes, by type.

They are those of OpenAI's SDK 3.51 in its order, because vLLM validates and repeats tools with the SDK's own
types.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import GenericAlias, NoneType
from typing import Any, Literal, get_args

import msgspec
from msgspec import NODEFAULT, Struct

from app.protocol.coercion import JsonObject


def _kind(title: str, /, **fields: object) -> Any:
    """Returns a struct of `fields`; those that may be null may be absent."""
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
"""By type. Functions, also those of a namespace, and custom tools may be called, the others never are."""
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
"""By type: what `tool_choice` may be besides a word."""
