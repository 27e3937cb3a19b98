"""Settings of replies, tool calls, and recorded conversations."""

from typing import Annotated, Literal

from msgspec import Meta

from config.declaration import (
    LIVE,
    About,
    NotNegative,
    Percent,
    PositiveDuration,
    Section,
    SettingRule,
    not_below,
)

ALL_MODELS = ""
"""Model of an item without a model, in dataset-path and script."""

DatasetUrl = Annotated[
    str, Meta(pattern="^(?i:https?)://", description="must begin with http:// or https://")
]
Sha256 = Annotated[
    str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z", description="must be 64 hexadecimal digits")
]
Identifier = Annotated[
    str,
    Meta(
        pattern=r"\A[^\W\d]\w*\Z", description="must be a name of letters, digits and underscores"
    ),
]
"""Name of a SQL table that needs no quotes."""
DatasetFiles = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A(?!\s*\Z|[^=]*=\s*\Z)")], ...],
    Meta(description="must name a file in every item"),
]
"""Items are a path, or `model=path`; the path must not be blank."""
ScriptFiles = DatasetFiles
Targets = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A((?!https?://)[^=]+=)?https?://[^/\s]")], ...],
    Meta(description="must have items such as http://host:8000 or model=https://KEY@host"),
]
ONE_FILE_PER_MODEL = "must not name two files for the same model"


def _route(item: str) -> tuple[str, str]:
    """Splits an item into model and path."""
    model, equals, path = item.partition("=")
    if not equals:
        return ALL_MODELS, item.strip()
    return model.strip(), path.strip()


def _one_file_per_model(items: tuple[str, ...], section: object) -> str:
    """Returns the flaw of items with two files for a model; empty for valid items."""
    models = {_route(item)[0] for item in items}
    return ONE_FILE_PER_MODEL if len(models) < len(items) else ""


class ReplySettings(Section, frozen=True, kw_only=True):
    """Content of replies."""

    mode: Literal["random", "echo"] = "random"
    """Content of replies. random: sample sentences of random length. echo: the text of the last
    message."""
    seed: int | None = None
    """Seed of all random values; different at every start when empty."""
    reasoning_parser: str = ""
    """With any name, replies begin with a reasoning text, in the field `reasoning`. Empty disables
    reasoning. With engine llm, the reasoning is the text up to </think>. The name selects the
    template argument that turns reasoning off, as with vLLM's parsers."""
    anthropic_disabled_thinking_effort: Literal[
        "auto", "none", "low", "medium", "high", "xhigh", "max"
    ] = "auto"
    """Reasoning effort for /v1/messages requests with thinking.type disabled; auto is none, or low
    if the chat template does not support none."""


class ReplaySettings(Section, frozen=True, kw_only=True):
    """Replies from a recording of `record --proxy`."""

    replay: Annotated[str, About(path=True)] = ""
    """Recording whose responses answer equal requests. Empty disables replay."""
    replay_miss: Literal["simulate", "not-found", "nearest", "record"] = "simulate"
    """Handling of a request that is not in the recording. simulate: the engine replies. not-found:
    rejected with 404. nearest: the response to the most similar request. record: a target responds,
    and the response is added to the recording. The header X-Replay-Miss overrides it."""
    target: Annotated[Targets, About(secret=True)] = ()
    """Servers for replay-miss record, each as URL, or as model=URL for the requests of one model. A
    key precedes the host: https://KEY@host. The flag may be repeated."""
    target_timeout: PositiveDuration = 300.0
    """Maximum time to wait for the response of a target, or for its next part."""


class ToolSettings(Section, frozen=True, kw_only=True):
    """Random values in tool calls and structured output, within the schema."""

    min_tool_call_integer_param: Annotated[int, LIVE] = 0
    """Minimum of random integers if the schema has no range."""
    max_tool_call_integer_param: Annotated[int, LIVE, not_below("min_tool_call_integer_param")] = (
        100
    )
    """Maximum of random integers if the schema has no range."""
    min_tool_call_number_param: Annotated[float, LIVE] = 0.0
    """Minimum of random numbers if the schema has no range."""
    max_tool_call_number_param: Annotated[float, LIVE, not_below("min_tool_call_number_param")] = (
        100.0
    )
    """Maximum of random numbers if the schema has no range."""
    min_tool_call_array_param_length: Annotated[NotNegative, LIVE] = 1
    """Minimum number of items of an array if the schema has no limit."""
    max_tool_call_array_param_length: Annotated[
        int, LIVE, not_below("min_tool_call_array_param_length")
    ] = 5
    """Maximum number of items of an array if the schema has no limit."""
    tool_call_not_required_param_probability: Annotated[Percent, About(unit="%", live=True)] = 50
    """Probability of a parameter that is not required."""
    object_tool_call_not_required_field_probability: Annotated[
        Percent, About(unit="%", live=True)
    ] = 50
    """Probability of a field of a nested object that is not required."""
    tool_call_extra_call_probability: Annotated[Percent, About(unit="%", live=True)] = 45
    """Probability of another call after each call, up to one call per tool."""
    tool_call_parser: str = ""
    """Format of tool calls of engine llm: hermes or llama3_json; empty is hermes. A simulated
    engine accepts any name, and with a name it validates tools as vLLM does."""
    enable_auto_tool_choice: bool = True
    """Allow tool_choice. When false, every tool_choice is rejected, as by a vLLM without a parser
    of tool calls."""
    skip_tool_validation: Annotated[bool, LIVE] = False
    """Accept tools with an invalid schema, and ignore the invalid parts."""


class DatasetSettings(Section, frozen=True, kw_only=True):
    """Replies from datasets of conversations."""

    dataset_path: Annotated[
        DatasetFiles,
        About(path=True),
        SettingRule(ONE_FILE_PER_MODEL, _one_file_per_model),
    ] = ()
    """SQLite files with replies, each as path, or as model=path for the requests of one model."""
    dataset_url: DatasetUrl | None = None
    """URL from which the first file is downloaded if it does not exist."""
    dataset_sha256: Sha256 | None = None
    """Expected SHA-256 (hexadecimal) of the downloaded file."""
    dataset_in_memory: bool = False
    """Load the files into memory at the start."""
    dataset_table_name: Identifier = "llmd"
    """Name of the table with the replies."""

    @property
    def files(self) -> dict[str, str]:
        """Model (`ALL_MODELS` for all other models) -> path, in the order of dataset-path."""
        return dict(map(_route, self.dataset_path))


class ScriptSettings(Section, frozen=True, kw_only=True):
    """Replies from the rules of scripts."""

    script: Annotated[ScriptFiles, About(path=True)] = ()
    """YAML files with rules for replies, each as path, or as model=path for the requests of one
    model. A changed file is reloaded."""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Model (`ALL_MODELS` for all models) and path of each item, in order."""
        return tuple(map(_route, self.script))
