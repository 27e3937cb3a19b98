"""The language of scripts: ordered rules, each with conditions (`when`) and an action (`then`).

Names and meanings are the YAML file's (docs/scripts.md). Every text of `then` may be a template.
Start reading at `Script`, the last class.
"""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from app.core.protocol.common import UsageOverrides

PASS = "pass"
CONTENT_KEYS = ("text", "json", "tool_calls", "reasoning", "blocks")
"""Keys of `then` that give the reply of a model that generates text."""
NUMBER_KEYS = ("embedding", "score", "classes", "input_tokens")
"""Keys of `then` that give the output of a pooling model, or a count of tokens."""
COUNT_TOKENS = "count_tokens"
"""The API that counts the tokens of a message. Only rules that name it answer its requests."""

Family = Literal[
    "chat", "completions", "responses", "messages", "count_tokens", "generate",
    "transcriptions", "translations", "embeddings", "pooling", "classify", "score", "rerank",
]  # fmt: skip
Scope = Literal["server", "key", "conversation"]
Which = Literal["last", "first", "any"]
Finish = Literal["stop", "length", "abort", "content_filter"]
Ordinal = Annotated[int, Meta(ge=1, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=64)]
Items = Annotated[tuple[str, ...], Meta(min_length=1)]
Texts = str | Items
Duration = str | Annotated[int, Meta(ge=0)]
"""Duration in the settings' syntax: `250ms`, `1.5s`, or whole milliseconds."""


class ScriptError(ValueError):
    """An invalid script. The text is one line with the file, the rule's number and the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RuleFailureError(Exception):
    """A rule matches a request but cannot answer. The text names the file and the rule."""


class RulePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a rule; an unknown key is an error."""


class TextIs(RulePart, frozen=True, kw_only=True):
    """Conditions on a text; all must hold, for a list of texts on at least one text."""

    exact: Texts | None = None
    """The whole text."""
    contains: Texts | None = None
    """A part of the text."""
    regex: str | None = None
    """Searched anywhere in the text; templates read its groups as `match`."""
    ignore_case: bool = False
    """Compares without regard to upper and lower case."""


class MessageIs(TextIs, frozen=True, kw_only=True):
    """Condition on a message of the conversation."""

    role: str | None = None
    """Role of the message, such as `user` or `tool`."""
    which: Which = "last"
    """Which message is compared; with `role`, only messages of this role count."""


class ToolResultIs(TextIs, frozen=True, kw_only=True):
    """Condition on the tool results at the end of the conversation; one result must match."""

    tool: str | None = None
    """Name of the called tool."""
    call_id: str | None = None
    """ID of the call."""


class Range(RulePart, frozen=True, kw_only=True):
    """Range of whole numbers; both ends are included."""

    at_least: Ordinal = 1
    """The smallest number."""
    at_most: Ordinal | None = None
    """The largest number; without it, the range has no end."""


Numbers = Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Range


class Nth(RulePart, frozen=True, kw_only=True):
    """Condition on the number of requests that matched all other conditions, including this one."""

    count: Numbers
    """Numbers of the requests that match, counted from 1."""
    per: Scope = "server"
    """Scope of the count: the server, each API key (or address), or each conversation."""


class When(RulePart, frozen=True, kw_only=True):
    """Conditions on a request; all must hold."""

    model: Texts | None = None
    """Name of the requested model."""
    api: Family | Annotated[tuple[Family, ...], Meta(min_length=1)] | None = None
    """Family of the route."""
    message: str | MessageIs | Annotated[tuple[str | MessageIs, ...], Meta(min_length=1)] | None = (
        None
    )
    """A plain text is compared with the last message."""
    turn: Numbers | None = None
    """Number of user messages; 1 for a request without messages."""
    tool_result: bool | str | ToolResultIs | None = None
    """The conversation ends with a tool result.

    True accepts any result, and false none; a text is the name of the tool.
    """
    tools: bool | Texts | None = None
    """The request offers tools. True accepts any, and false none; texts are required names."""
    headers: dict[str, str | TextIs | None] = {}
    """Header name and condition on its value; null accepts any value."""
    nth: Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Nth | None = None
    """Only the n-th request that matches all other conditions."""
    chance: Share = 1.0
    """Probability that the rule applies, from 0 to 1."""


class RuleCall(RulePart, frozen=True, kw_only=True):
    """A tool call of a reply."""

    name: str
    """Name of the tool."""
    arguments: dict[str, object] | str = {}
    """Arguments of the call; texts may be templates.

    A text is sent unchanged. With `unchecked`, it may be any text, such as malformed JSON.
    """
    id: str | None = None
    """The server generates a missing id."""
    unchecked: bool = False
    """Skips the check that the request offers the tool and that its schema allows the arguments."""


class Delays(RulePart, frozen=True, kw_only=True):
    """Delays that are added to the delays of the engine."""

    first_token: Duration = 0
    """Wait before the first token."""
    per_token: Duration = 0
    """Wait before each token except the first."""
    before: dict[Ordinal, Duration] = {}
    """Maps a token's number, counted from 1, to the wait before it."""


Classes = (
    Annotated[tuple[float, ...], Meta(min_length=1, max_length=65_536)]
    | Annotated[dict[Name, float], Meta(min_length=1, max_length=65_536)]
)


class Then(RulePart, frozen=True, kw_only=True):
    """The action of a rule."""

    text: str | None = None
    """Text of the reply, a template."""
    json: object | UnsetType = UNSET
    """A value whose JSON is the text of the reply."""
    tool_calls: tuple[RuleCall, ...] = ()
    """Tool calls of the reply."""
    reasoning: str | None = None
    """Text of the reasoning before the reply."""
    blocks: tuple[dict[str, object], ...] | None = None
    """Content blocks of a message, sent unchanged; only with `api: messages`.

    The rule also answers requests with tools or blocks that vLLM rejects.
    """
    embedding: Annotated[tuple[float, ...], Meta(min_length=1)] | str | None = None
    """A vector, or a text to embed."""
    score: float | str | None = None
    """Match of a query and a document; a text is a template of a number."""
    classes: Classes | None = None
    """Probability of each class, in order or by name."""
    input_tokens: Annotated[int, Meta(ge=0, lt=2**31)] | None = None
    """Answer of `/v1/messages/count_tokens`; only with `api: count_tokens`."""
    finish_reason: Finish | None = None
    """Finish reason in place of the usual one."""
    usage: UsageOverrides | None = None
    """Token counts that replace the real ones."""
    fault: dict[str, object] | None = None
    """One rule of docs/faults.md."""
    delays: Delays | None = None
    """Waits that are added to the pace of the engine."""
    passes: bool = field(name=PASS, default=False)
    """Leaves the answer to the reply mode; usage, fault and delays still apply."""


class Rule(RulePart, frozen=True, kw_only=True):
    """A rule; a text for `then` is short for `pass`."""

    then: str | Then
    """The action. The text `pass` is an action, too."""
    name: Name = ""
    """Name of the rule in the journal and in counts."""
    when: When = When()
    """Conditions; without any, every request matches."""
    times: Ordinal | None = None
    """Most requests that the rule answers, of each scope; None for no limit."""


class Script(RulePart, frozen=True, kw_only=True):
    """A script: the first of its rules that matches a request answers it."""

    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=10_000)]
    """Rules in the order of their evaluation."""
    seed: int | None = None
    """Seed of the script's random draws, instead of the server's random source."""
    tools: dict[str, object] = {}
    """Maps a tool to the JSON Schema of its arguments.

    Calls are checked against these schemas at start.
    """
