"""Structs of the tools and tool choices of ``POST /v1/responses``, which the answer repeats.

Fields are in the answer's order. A field without a value is null in the answer.
"""

from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args

from msgspec import Struct, field

from app.core.protocol.coercion import JsonObject

Callers = list[Literal["direct", "programmatic"]]
Connector = Literal[
    "connector_dropbox",
    "connector_gmail",
    "connector_googlecalendar",
    "connector_googledrive",
    "connector_microsoftteams",
    "connector_outlookcalendar",
    "connector_outlookemail",
    "connector_sharepoint",
]
WebSearchType = Literal["web_search", "web_search_2025_08_26"]
WebSearchPreviewType = Literal["web_search_preview", "web_search_preview_2025_03_11"]
PlainToolType = Literal["computer", "local_shell", "programmatic_tool_calling"]
ChosenTypeName = Literal[
    "file_search",
    "web_search_preview",
    "computer",
    "computer_use_preview",
    "computer_use",
    "shell",
    "web_search_preview_2025_03_11",
    "image_generation",
    "code_interpreter",
    "apply_patch",
    "programmatic_tool_calling",
]


class FunctionTool(Struct, kw_only=True):
    """A function that the model may call."""

    name: str
    parameters: JsonObject | None = None
    strict: bool | None = None
    type: Literal["function"]
    allowed_callers: Callers | None = None
    is_async: bool | None = field(name="async", default=None)
    defer_loading: bool | None = None
    description: str | None = None
    output_schema: JsonObject | None = None


class CustomToolFormat(Struct):
    """The format of a custom tool's input: free text."""

    type: Literal["text"]


class CustomTool(Struct):
    """A tool that takes text instead of JSON."""

    name: str
    type: Literal["custom"]
    allowed_callers: Callers | None = None
    is_async: bool | None = field(name="async", default=None)
    defer_loading: bool | None = None
    description: str | None = None
    format: CustomToolFormat | None = None


class NamespaceFunction(Struct):
    """A function of a namespace."""

    name: str
    type: Literal["function"]
    allowed_callers: Callers | None = None
    is_async: bool | None = field(name="async", default=None)
    defer_loading: bool | None = None
    description: str | None = None
    output_schema: JsonObject | None = None
    parameters: object = None
    strict: bool | None = None


class NamespaceTool(Struct):
    """A group of tools, whose name precedes those of its functions."""

    description: str
    name: str
    tools: list[NamespaceFunction | CustomTool]
    type: Literal["namespace"]


class WebSearchFilters(Struct):
    """Restricts a web search to some domains."""

    allowed_domains: list[str] | None = None


class UserLocation(Struct):
    """The approximate place of the user of a web search."""

    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None
    type: Literal["approximate"] | None = None


class WebSearchTool(Struct):
    """A web search, which is never called here."""

    type: WebSearchType
    external_web_access: bool | None = None
    filters: WebSearchFilters | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: UserLocation | None = None


class PreviewLocation(Struct):
    """The approximate place of the user of an earlier web search."""

    type: Literal["approximate"]
    city: str | None = None
    country: str | None = None
    region: str | None = None
    timezone: str | None = None


class WebSearchPreviewTool(Struct):
    """An earlier web search, which is never called here."""

    type: WebSearchPreviewType
    search_content_types: list[Literal["text", "image"]] | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: PreviewLocation | None = None


class McpToolFilter(Struct):
    """Selects tools of an MCP server."""

    read_only: bool | None = None
    tool_names: list[str] | None = None


class McpApproval(Struct):
    """The tools of an MCP server that always need an approval, or never need one."""

    always: McpToolFilter | None = None
    never: McpToolFilter | None = None


class Mcp(Struct):
    """An MCP server, which is never called here."""

    server_label: str
    type: Literal["mcp"]
    allowed_callers: Callers | None = None
    allowed_tools: list[str] | McpToolFilter | None = None
    authorization: str | None = None
    connector_id: Connector | None = None
    defer_loading: bool | None = None
    headers: dict[str, str] | None = None
    require_approval: McpApproval | Literal["always", "never"] | None = None
    server_description: str | None = None
    server_url: str | None = None
    tunnel_id: str | None = None


class DomainSecret(Struct):
    """A secret that a container sends to one domain."""

    domain: str
    name: str
    value: str


class NetworkDisabled(Struct):
    """A container without network."""

    type: Literal["disabled"]


class NetworkAllowlist(Struct):
    """A container that reaches only the listed domains."""

    allowed_domains: list[str]
    type: Literal["allowlist"]
    domain_secrets: list[DomainSecret] | None = None


class AutoContainer(Struct):
    """The container of a code interpreter."""

    type: Literal["auto"]
    file_ids: list[str] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None
    network_policy: NetworkDisabled | NetworkAllowlist | None = None


class CodeInterpreter(Struct):
    """A code interpreter, which is never called here."""

    container: str | AutoContainer
    type: Literal["code_interpreter"]
    allowed_callers: Callers | None = None


class ComparisonFilter(Struct):
    """Files whose attribute `key` has a value."""

    key: str
    type: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    value: object


class CompoundFilter(Struct):
    """Files that fit several filters."""

    filters: list[object]
    type: Literal["and", "or"]


class HybridSearch(Struct):
    """Weights of the two searches of a file search."""

    embedding_weight: float
    text_weight: float


class RankingOptions(Struct):
    """How a file search ranks its results."""

    hybrid_search: HybridSearch | None = None
    ranker: Literal["auto", "default-2024-11-15"] | None = None
    score_threshold: float | None = None


class FileSearchTool(Struct):
    """A search in stored files, which is never called here."""

    type: Literal["file_search"]
    vector_store_ids: list[str]
    filters: ComparisonFilter | CompoundFilter | None = None
    max_num_results: int | None = None
    ranking_options: RankingOptions | None = None


class ComputerUsePreviewTool(Struct):
    """A screen that the model operates, which is never called here."""

    display_height: int
    display_width: int
    environment: Literal["windows", "mac", "linux", "ubuntu", "browser"]
    type: Literal["computer_use_preview"]


class ImageMask(Struct):
    """The part of an image that is generated anew."""

    file_id: str | None = None
    image_url: str | None = None


class SvgReasoning(Struct):
    """How much a model thinks about a vector graphic."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class Svg(Struct):
    """Options for vector graphics."""

    model: str | None = None
    reasoning: SvgReasoning | None = None


class ImageGeneration(Struct):
    """A generator of images, which is never called here."""

    type: Literal["image_generation"]
    action: Literal["generate", "edit", "auto"] | None = None
    background: Literal["transparent", "opaque", "auto"] | None = None
    complexity: Literal["low", "medium", "high"] | None = None
    frame_count: int | None = None
    frame_duration_ms: int | None = None
    input_fidelity: Literal["high", "low"] | None = None
    input_image_mask: ImageMask | None = None
    model: str | None = None
    moderation: Literal["auto", "low"] | None = None
    output_compression: int | None = None
    output_format: Literal["png", "webp", "jpeg", "gif", "svg"] | None = None
    partial_images: int | None = None
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"] | None = None
    size: str | None = None
    svg: Svg | None = None


class SkillReference(Struct):
    """A stored skill."""

    skill_id: str
    type: Literal["skill_reference"]
    version: str | None = None


class InlineSkillSource(Struct):
    """The archive of a skill."""

    data: str
    media_type: Literal["application/zip"]
    type: Literal["base64"]


class InlineSkill(Struct):
    """A skill in the request."""

    description: str
    name: str
    source: InlineSkillSource
    type: Literal["inline"]


class ContainerAuto(Struct):
    """A new container of a shell."""

    type: Literal["container_auto"]
    file_ids: list[str] | None = None
    memory_limit: Literal["1g", "4g", "16g", "64g"] | None = None
    network_policy: NetworkDisabled | NetworkAllowlist | None = None
    skills: list[SkillReference | InlineSkill] | None = None


class LocalSkill(Struct):
    """A skill in a folder of the client."""

    description: str
    name: str
    path: str


class LocalEnvironment(Struct):
    """The machine of the client."""

    type: Literal["local"]
    skills: list[LocalSkill] | None = None


class ContainerReference(Struct):
    """An existing container."""

    container_id: str
    type: Literal["container_reference"]


class ShellTool(Struct):
    """A shell, which is never called here."""

    type: Literal["shell"]
    allowed_callers: Callers | None = None
    environment: ContainerAuto | LocalEnvironment | ContainerReference | None = None


class ToolSearchTool(Struct):
    """A search for deferred tools, which is never called here."""

    type: Literal["tool_search"]
    description: str | None = None
    execution: Literal["server", "client"] | None = None
    parameters: object = None


class ApplyPatchTool(Struct):
    """An editor of files, which is never called here."""

    type: Literal["apply_patch"]
    allowed_callers: Callers | None = None


class PlainTool(Struct):
    """A tool without fields, which is never called here."""

    type: PlainToolType


class AllowedTools(Struct):
    """A choice among several tools."""

    mode: Literal["auto", "required"]
    tools: list[JsonObject]
    type: Literal["allowed_tools"]


class ChosenFunction(Struct):
    """The choice of one function."""

    name: str
    type: Literal["function"]


class ChosenMcp(Struct):
    """The choice of an MCP server, or of one of its tools."""

    server_label: str
    type: Literal["mcp"]
    name: str | None = None


class ChosenCustom(Struct):
    """The choice of one custom tool."""

    name: str
    type: Literal["custom"]


class ChosenType(Struct):
    """The choice of a tool by its type alone."""

    type: ChosenTypeName


@cache
def tool_structs() -> Mapping[str, type[Struct]]:
    """Returns the struct of each type of tool that the answer repeats with all its fields.

    Only functions, also in a namespace, and custom tools are ever called.
    """
    return {
        "function": FunctionTool,
        "mcp": Mcp,
        "code_interpreter": CodeInterpreter,
        "custom": CustomTool,
        "namespace": NamespaceTool,
        "file_search": FileSearchTool,
        "computer_use_preview": ComputerUsePreviewTool,
        "image_generation": ImageGeneration,
        "shell": ShellTool,
        "tool_search": ToolSearchTool,
        "apply_patch": ApplyPatchTool,
        **dict.fromkeys(get_args(PlainToolType), PlainTool),
        **dict.fromkeys(get_args(WebSearchType), WebSearchTool),
        **dict.fromkeys(get_args(WebSearchPreviewType), WebSearchPreviewTool),
    }


@cache
def choice_structs() -> Mapping[str, type[Struct]]:
    """Returns the struct of each type of tool choice."""
    return {
        "allowed_tools": AllowedTools,
        "function": ChosenFunction,
        "mcp": ChosenMcp,
        "custom": ChosenCustom,
        **dict.fromkeys(get_args(ChosenTypeName), ChosenType),
    }
