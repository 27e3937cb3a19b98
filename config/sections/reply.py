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
    """Sample sentences of random length, or the text of the last message."""
    seed: int | None = None
    """Seed of everything that is random; different at every start when empty."""
    reasoning_parser: str = ""
    """Any name makes the model think aloud first; the thoughts are in `reasoning`. Empty is off.
    With engine llm thoughts are the text up to </think>. The switch for thoughts depends on the
    name, as with vLLM's parsers."""
    anthropic_disabled_thinking_effort: Literal[
        "auto", "none", "low", "medium", "high", "xhigh", "max"
    ] = "auto"
    """The reasoning effort that thinking.type disabled of /v1/messages means; auto is none, or low
    where the chat template does not know none."""


class ReplaySettings(Section, frozen=True, kw_only=True):
    """Recorded exchanges as answers: what `record --proxy` has written."""

    replay: Annotated[str, About(path=True)] = ""
    """A recording whose answers are given to equal requests. Empty is off."""
    replay_miss: Literal["simulate", "not-found", "nearest", "record"] = "simulate"
    """A request that is not in the recording goes on as ever, is refused with 404, gets the answer
    to the one most like it; or (record) a target answers, and the recording keeps it. X-Replay-Miss
    overrides it."""
    target: Annotated[Targets, About(secret=True)] = ()
    """Servers for replay-miss record, each as URL, or as model=URL for the requests of one model; a
    key goes in front of the host: https://KEY@host. The flag may be repeated."""
    target_timeout: PositiveDuration = 300.0
    """Longest wait for the answer of a target, or for its next part."""


class ToolSettings(Section, frozen=True, kw_only=True):
    """Tool calls and structured output: which values are drawn where the schema leaves a choice."""

    min_tool_call_integer_param: Annotated[int, LIVE] = 0
    """Smallest integer drawn where the schema gives no range."""
    max_tool_call_integer_param: Annotated[int, LIVE, not_below("min_tool_call_integer_param")] = (
        100
    )
    """Largest integer drawn where the schema gives no range."""
    min_tool_call_number_param: Annotated[float, LIVE] = 0.0
    """Smallest number drawn where the schema gives no range."""
    max_tool_call_number_param: Annotated[float, LIVE, not_below("min_tool_call_number_param")] = (
        100.0
    )
    """Largest number drawn where the schema gives no range."""
    min_tool_call_array_param_length: Annotated[NotNegative, LIVE] = 1
    """Fewest items of an array without a limit in the schema."""
    max_tool_call_array_param_length: Annotated[
        int, LIVE, not_below("min_tool_call_array_param_length")
    ] = 5
    """Most items of an array without a limit in the schema."""
    tool_call_not_required_param_probability: Annotated[Percent, About(unit="%", live=True)] = 50
    """Chance of a parameter that is not required."""
    object_tool_call_not_required_field_probability: Annotated[
        Percent, About(unit="%", live=True)
    ] = 50
    """Chance of a field of a nested object that is not required."""
    tool_call_extra_call_probability: Annotated[Percent, About(unit="%", live=True)] = 45
    """Chance of one more call, asked again after each, up to one call a tool."""
    tool_call_parser: str = ""
    """How the model writes tool calls (engine llm): hermes or llama3_json; empty is hermes. A
    simulation takes any name, and judges tools as vLLM does where one is given."""
    enable_auto_tool_choice: bool = True
    """Let tools be chosen; off, vLLM has no parser of calls, and every tool_choice is refused."""
    skip_tool_validation: Annotated[bool, LIVE] = False
    """Take tools whose schema is wrong; what cannot be understood is left out."""


class DatasetSettings(Section, frozen=True, kw_only=True):
    """Recorded conversations as replies."""

    dataset_path: Annotated[
        DatasetFiles,
        About(path=True),
        SettingRule(ONE_FILE_PER_MODEL, _one_file_per_model),
    ] = ()
    """SQLite files with replies, each as path, or as model=path for the requests of one model."""
    dataset_url: DatasetUrl | None = None
    """Address for the download of the first file, if the file does not exist yet."""
    dataset_sha256: Sha256 | None = None
    """SHA-256 (hex) that the downloaded file must have."""
    dataset_in_memory: bool = False
    """Copy the files into memory at the start."""
    dataset_table_name: Identifier = "llmd"
    """Table that holds the replies."""

    @property
    def files(self) -> dict[str, str]:
        """Model (`ALL_MODELS` for all other models) -> path, in the order of dataset-path."""
        return dict(map(_route, self.dataset_path))


class ScriptSettings(Section, frozen=True, kw_only=True):
    """Replies by the rules of scripts."""

    script: Annotated[ScriptFiles, About(path=True)] = ()
    """YAML files with rules for replies, each as path, or as model=path for the requests of one
    model. They are read again when they change."""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Model (`ALL_MODELS` for all models) and path of each item, in order."""
        return tuple(map(_route, self.script))
