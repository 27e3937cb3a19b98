"""The language of scripts: ordered rules, each with conditions (`when`) and an action (`then`); its
reader.

Names and meanings are the YAML file's (docs/scripts.md). Every text of `then` may be a template.
Errors are one line with file, rule and key.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import fields

from app.serving.protocol.common import UsageOverrides
from config.declaration import ConfigError, suggestion
from config.yaml_file import parse_yaml

MOST_BYTES = 2 << 20
"""Largest script, in bytes."""
CONTENT = ("text", "json", "tool_calls", "reasoning")
NUMBERS = ("embedding", "score", "classes")


class ScriptError(ValueError):
    """An invalid script. The text is one line with the file, the rule's number and the key."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ScriptFailure(Exception):
    """A rule matches a request but cannot answer.

    The text is one sentence that names file and rule.
    """


Family = Literal[
    "chat", "completions", "responses", "messages", "generate",
    "embeddings", "pooling", "classify", "score", "rerank",
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
PASS = "pass"


class RulePart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a rule; an unknown key is an error."""


class TextIs(RulePart, frozen=True, kw_only=True):
    """Conditions on a text; all must hold. One text of a list is enough."""

    exact: Texts | None = None
    contains: Texts | None = None
    regex: str | None = None
    """Searched anywhere in the text; templates read its groups as `match`."""
    ignore_case: bool = False


class MessageIs(TextIs, frozen=True, kw_only=True):
    """Condition on a message of the conversation."""

    role: str | None = None
    which: Which = "last"
    """Which message is compared, counted among the messages with `role` if given."""


class ToolResultIs(TextIs, frozen=True, kw_only=True):
    """Condition on the tool results at the end of the conversation; one match is enough."""

    tool: str | None = None
    """Name of the called tool."""


class Range(RulePart, frozen=True, kw_only=True):
    """Range of whole numbers; both ends are included."""

    at_least: Ordinal = 1
    at_most: Ordinal | None = None


Numbers = Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Range


class Nth(RulePart, frozen=True, kw_only=True):
    """Condition on the number of requests that matched all other conditions, this request included."""

    count: Numbers
    per: Scope = "server"
    """Scope of the count: the server, each API key (or address), or each conversation."""


class When(RulePart, frozen=True, kw_only=True):
    """Conditions on a request; all that are given must hold."""

    model: Texts | None = None
    api: Family | Annotated[tuple[Family, ...], Meta(min_length=1)] | None = None
    message: str | MessageIs | Annotated[tuple[str | MessageIs, ...], Meta(min_length=1)] | None = (
        None
    )
    """A plain text is compared with the last message."""
    turn: Numbers | None = None
    """Number of user messages; 1 where there are no messages."""
    tool_result: bool | str | ToolResultIs | None = None
    """The conversation ends with a tool result:

    any (false: none), of the named tool, or this text.
    """
    tools: bool | Texts | None = None
    """The request offers tools: any (or, if false, none), or at least the named tools."""
    headers: dict[str, str | TextIs | None] = {}
    """Header name and condition on its value; null accepts any value."""
    nth: Ordinal | Annotated[tuple[Ordinal, ...], Meta(min_length=1)] | Nth | None = None
    chance: Share = 1.0


class RuleCall(RulePart, frozen=True, kw_only=True):
    name: str
    arguments: dict[str, object] = {}
    id: str | None = None
    """Without an id the server generates one."""
    unchecked: bool = False
    """Skips the check that the request offers the tool and that its schema allows the arguments."""


class Delays(RulePart, frozen=True, kw_only=True):
    """Waits added to the engine's own."""

    first_token: Duration = 0
    per_token: Duration = 0
    """Before each token but the first."""
    before: dict[Ordinal, Duration] = {}
    """Maps a token's number, counted from 1, to the wait before it."""


Classes = (
    Annotated[tuple[float, ...], Meta(min_length=1, max_length=65_536)]
    | Annotated[dict[Name, float], Meta(min_length=1, max_length=65_536)]
)


class Then(RulePart, frozen=True, kw_only=True):
    text: str | None = None
    json: object | UnsetType = UNSET
    """Answer text, given as a value and written as JSON."""
    tool_calls: tuple[RuleCall, ...] = ()
    reasoning: str | None = None
    embedding: Annotated[tuple[float, ...], Meta(min_length=1)] | str | None = None
    """A vector, or a text to be embedded."""
    score: float | str | None = None
    """Match of a query and a document; a text is a template of a number."""
    classes: Classes | None = None
    """Probability of each class, in order or by name."""
    finish_reason: Finish | None = None
    usage: UsageOverrides | None = None
    fault: dict[str, object] | None = None
    """One rule of docs/faults.md."""
    delays: Delays | None = None
    passes: bool = field(name=PASS, default=False)
    """Leaves the answer to the reply mode; usage, fault and delays still apply."""


class Rule(RulePart, frozen=True, kw_only=True):
    """A rule; the first that matches a request answers it."""

    then: str | Then
    name: Name = ""
    when: When = When()


class Script(RulePart, frozen=True, kw_only=True):
    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=10_000)]
    seed: int | None = None
    """Seed of the script's random draws; without one, the server's random source."""
    tools: dict[str, object] = {}
    """Maps a tool to the JSON Schema of its arguments.

    Calls are checked against these schemas at start.
    """


PARTS = (
    Script,
    Rule,
    When,
    MessageIs,
    ToolResultIs,
    Range,
    Nth,
    Then,
    RuleCall,
    UsageOverrides,
    Delays,
)
KEYS = {each.encode_name for part in PARTS for each in fields(part)}
"""All keys of the language."""
CHOICES = {"api": Family, "which": Which, "per": Scope, "finish_reason": Finish}
_UNKNOWN = re.compile(r"unknown field `(.*)`")
_STEP = re.compile(r"[^\].\[]+|\.\.\.")
"""A step of a path in an error: `rules` and 1 in `$.rules[1]`; three dots stand for any member."""


def read_script(path: str) -> Script:
    """Reads the script in the file `path`. ScriptError for a missing or invalid file."""
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise ScriptError(
                f"script {path}: {size} bytes are more than the {MOST_BYTES} of a script"
            )
        document = parse_yaml(path)
    except OSError as error:
        raise ScriptError(f"script {path}: cannot be read: {error.strerror}") from None
    except ConfigError as error:
        raise ScriptError(str(error).replace("YAML file", "script", 1)) from None
    if not isinstance(document, dict):
        raise ScriptError(
            f"script {path}: must be a mapping with rules, got {type(document).__name__}"
        )
    return script_of(document, path)


def script_of(document: Mapping[str, object], path: str) -> Script:
    """Converts a parsed document into a script. Raises ScriptError like `read_script`."""
    try:
        script = msgspec.convert(document, Script, str_keys=True)
        for number, rule in enumerate(script.rules, 1):
            if flaw := _flaw_of(rule):
                raise ScriptError(f"{place(path, number, rule.name)}: {flaw}")
    except msgspec.ValidationError as error:
        raise ScriptError(_explained(str(error), document, path)) from None
    return script


def place(path: str, number: int, name: str = "") -> str:
    return f"script {path}: rule {number}" + (f" ({name})" if name else "")


def _flaw_of(rule: Rule) -> str:
    """Returns an error that msgspec's types cannot express; empty for a valid rule."""
    then = rule.then
    if not isinstance(then, Then):
        return "" if then == PASS else f"then: must be {PASS!r} or a mapping, got {then[:40]!r}"
    said = [key for key in (*CONTENT, *NUMBERS) if getattr(then, key) not in (None, UNSET, ())]
    if then == Then():
        return f"then: is empty; it needs {', '.join((*CONTENT, *NUMBERS))}, fault or {PASS}"
    if then.passes and (said or then.finish_reason):
        return (
            f"then: {PASS} leaves what is said to the mode "
            f"below, so {(said or ['the rest'])[0]} is in vain"
        )
    if {"text", "json"} <= set(said):
        return "then: text and json exclude each other"
    if len(said) > 1 and said[-1] in NUMBERS:
        return f"then: {said[0]} and {said[-1]} exclude each other: no request gets both"
    return (
        ""
        if then.fault or then.passes or said
        else f"then: says nothing; give it a text, or {PASS}: true"
    )


def _explained(message: str, document: Mapping[str, object], path: str) -> str:
    """Rewrites msgspec's message with the rule and key of the file."""
    what, _, at = message.partition(" - at ")
    steps = _STEP.findall(at.partition("$")[2].rstrip("`"))
    if unknown := _UNKNOWN.search(what):
        what = f"unknown key {unknown[1][:40]!r}{suggestion(unknown[1], KEYS)}"
    elif what.startswith("Invalid enum") and (words := CHOICES.get(steps[-1] if steps else "")):
        what = f"must be one of {', '.join(get_args(words))}, {what[8:]}"
    where = f"script {path}"
    if steps[:1] == ["rules"] and len(steps) > 1 and steps[1].isdigit():
        rules, number = document.get("rules"), int(steps[1])
        rule = rules[number] if isinstance(rules, list) else None
        name = rule.get("name") if isinstance(rule, dict) else None
        where = place(path, number + 1, name[:64] if isinstance(name, str) else "")
        steps = steps[2:]
    return ": ".join(filter(None, (where, ".".join(steps), what)))
