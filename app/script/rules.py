"""The language of scripts: rules in order, each with `when` it answers and what `then` is said.

Names and meaning are those of the YAML file (docs/scripts.md). All texts of `then` may be templates.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field


class ScriptError(ValueError):
    """A file that cannot be used. Its text is one line with the file, the rule's number and the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ScriptFailure(Exception):
    """A rule fits a request and cannot answer it; one sentence that names file and rule."""


Family = Literal[
    "chat", "completions", "responses", "messages", "generate",
    "embeddings", "pooling", "classify", "score", "rerank",
]  # fmt: skip
Scope = Literal["server", "key", "conversation"]
Ordinal = Annotated[int, Meta(ge=1, le=2**53)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=64)]
Items = Annotated[tuple[str, ...], Meta(min_length=1)]
Texts = str | Items
Duration = str | Annotated[int, Meta(ge=0)]
"""As in the settings: `250ms`, `1.5s`, or whole milliseconds."""
PASS = "pass"


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a rule; a key that it does not know is an error."""


class TextIs(Part, frozen=True, kw_only=True):
    """Conditions of a text, all of which hold. Of several texts in a list one is enough."""

    exact: Texts | None = None
    contains: Texts | None = None
    regex: str | None = None
    """Found anywhere; its groups are `match` in templates."""
    ignore_case: bool = False


class MessageIs(TextIs, frozen=True, kw_only=True):
    """A message of the conversation."""

    role: str | None = None
    which: Literal["last", "first", "any"] = "last"
    """Of all messages, or of those with this role."""


class ToolResultIs(TextIs, frozen=True, kw_only=True):
    """The tool results that end the conversation: one of them is this."""

    tool: str | None = None
    """Name of the tool that was called."""


class Range(Part, frozen=True, kw_only=True):
    """Whole numbers from one to another, both included."""

    at_least: Ordinal = 1
    at_most: Ordinal | None = None


Numbers = Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Range


class Nth(Part, frozen=True, kw_only=True):
    """How often a request has come that fits everything else, this one included."""

    count: Numbers
    per: Scope = "server"
    """Counted for all requests together, for each API key (or address), or for each conversation."""


class When(Part, frozen=True, kw_only=True):
    """Which requests a rule answers: those that fit all that is given."""

    model: Texts | None = None
    api: Family | Annotated[tuple[Family, ...], Meta(min_length=1)] | None = None
    message: str | MessageIs | Annotated[tuple[str | MessageIs, ...], Meta(min_length=1)] | None = None
    """A text alone is that of the last message."""
    turn: Numbers | None = None
    """User messages so far; 1 where there are no messages."""
    tool_result: bool | str | ToolResultIs | None = None
    """The conversation ends with the result of a tool: of any, of this one, or with this text."""
    tools: bool | Texts | None = None
    """Tools are offered: some, or at least these."""
    headers: dict[str, str | TextIs | None] = {}
    """Null is any value."""
    nth: Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Nth | None = None
    chance: Share = 1.0


class Call(Part, frozen=True, kw_only=True):
    """A tool call."""

    name: str
    arguments: dict[str, object] = {}
    id: str | None = None
    """Drawn by the server without one."""
    unchecked: bool = False
    """Made even where the request does not offer the tool, or its schema forbids the arguments."""


class UsageIs(Part, frozen=True, kw_only=True):
    """What the answer says of its tokens, whatever they are."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None


class Delays(Part, frozen=True, kw_only=True):
    """Waits on top of those of the engine."""

    first_token: Duration = 0
    per_token: Duration = 0
    """Before each token but the first."""
    before: dict[Ordinal, Duration] = {}
    """Token, counted from 1, to the wait before it."""


Classes = (
    Annotated[tuple[float, ...], Meta(min_length=1, max_length=65_536)]
    | Annotated[dict[Name, float], Meta(min_length=1, max_length=65_536)]
)


class Then(Part, frozen=True, kw_only=True):
    """The action of a rule."""

    text: str | None = None
    json: object | UnsetType = UNSET
    """A value that is written as JSON."""
    tool_calls: tuple[Call, ...] = ()
    reasoning: str | None = None
    embedding: Annotated[tuple[float, ...], Meta(min_length=1)] | str | None = None
    """A vector, or the text whose vector it is."""
    score: float | str | None = None
    """How well a query and a document match; a text is a template of a number."""
    classes: Classes | None = None
    """Probability of each class, in order or by name."""
    finish_reason: Literal["stop", "length", "abort", "content_filter"] | None = None
    usage: UsageIs | None = None
    fault: dict[str, object] | None = None
    """One rule of docs/faults.md."""
    delays: Delays | None = None
    passes: bool = field(name=PASS, default=False)
    """The mode below says something; usage, fault and delays hold for that, too."""


class Rule(Part, frozen=True, kw_only=True):
    """The first rule that fits a request answers it."""

    then: str | Then
    name: Name = ""
    when: When = When()


class Script(Part, frozen=True, kw_only=True):
    """A file."""

    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=10_000)]
    seed: int | None = None
    """Of its random draws; the server's without it."""
    tools: dict[str, object] = {}
    """Tool to the JSON Schema of its arguments: what calls are checked against before any request comes."""


PARTS: dict[str, type[Part]] = {
    "": Script,
    "rules": Rule,
    "when": When,
    "message": MessageIs,
    "tool_result": ToolResultIs,
    "headers": TextIs,
    "turn": Range,
    "nth": Nth,
    "count": Range,
    "then": Then,
    "tool_calls": Call,
    "usage": UsageIs,
    "delays": Delays,
}
"""The key that holds a part, for errors that tell which keys there are."""
