"""Fault rules: conditions on requests, and the fault for each match (docs/faults.md).

A rule is an object with an `action` and the fields of this action; all other fields are conditions.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from config.declaration import suggestion
from config.untrusted import UntrustedDataError

Count = Annotated[int, Meta(ge=0, le=2**53)]
Ordinal = Annotated[int, Meta(ge=1, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
PerMinute = Annotated[float, Meta(ge=1e-6, le=1e9)]
"""Rate per minute; the least is one in two years, as clients and headers cannot hold longer waits.
"""
Name = Annotated[str, Meta(max_length=64)]
Status = Annotated[int, Meta(ge=400, le=599)]
EXAMPLE = "{action: error, status: 503}"
"""Shown in errors about a rule that is none."""

Family = Literal["chat", "completions", "responses", "messages", "generate", "grpc"]


class FaultRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    """A rule; applies to requests that meet all of its conditions."""

    name: Name = ""
    """Name of the rule in a verdict; if empty, the action."""
    model: str | None = None
    """Name of the requested model."""
    api: Family | None = None
    """Family of the route."""
    path: Annotated[str, Meta(max_length=256)] | None = None
    """Pattern of the path, with `*`, `?` and `[...]` as in file names."""
    headers: dict[str, str | None] = {}
    """Maps a header to its exact value; null accepts any value."""
    nth: Ordinal | None = None
    """Only the n-th request that matches the conditions above."""
    every: Ordinal | None = None
    """Every n-th request that matches the conditions above."""
    probability: Share = 1.0
    """Probability that the rule applies, from 0 to 1."""
    times: Ordinal | None = None
    """Maximum number of faults; then the rule no longer applies."""

    @property
    def action(self) -> str:
        """The fault of the rule."""
        return str(self.__struct_config__.tag)


class ErrorRule(FaultRule, frozen=True, tag="error"):
    """Answers with an error of this status; None leaves a field to the status."""

    status: Status = 500
    """Status of the response."""
    type: str | None = None
    """Field `type` of the error."""
    message: str | None = None
    """Field `message` of the error."""
    param: str | None = None
    """Field `param` of the error."""
    code: Annotated[str, Meta(max_length=256)] | int | None | UnsetType = UNSET
    """Field `code` of the error; by default the status."""
    retry_after: Annotated[int, Meta(ge=0, le=86400)] | None = None
    """Header `Retry-After`, in seconds."""


class RateLimitRule(FaultRule, frozen=True, tag="rate-limit"):
    """429 above a quota that refills evenly; other responses have headers with the quota."""

    rate: PerMinute = 60.0
    """Requests per minute."""
    burst: PerMinute | None = None
    """Requests at once; default is the requests of one minute."""
    token_rate: PerMinute | None = None
    """Tokens per minute, estimated from the size of the request."""
    token_burst: PerMinute | None = None
    """Tokens at once; default is the tokens of one minute."""


class DisconnectRule(FaultRule, frozen=True, tag="disconnect"):
    """Breaks the connection after `after` chunks; with 0, before the status line."""

    after: Count = 0
    """Number of chunks before the break."""
    streams_only: bool = False
    """Sends responses that are not streams intact."""


class TruncateRule(FaultRule, frozen=True, tag="truncate"):
    """Ends the stream after `after` chunks, as if complete."""

    after: Count = 1
    """Number of chunks before the end."""


class TruncatedJsonRule(FaultRule, frozen=True, tag="truncated-json"):
    """Ends the reply in the middle of this chunk, as if complete."""

    chunk: Ordinal = 1
    """Number of the chunk, from 1."""


class MalformedChunkRule(FaultRule, frozen=True, tag="malformed-chunk"):
    """Replaces one chunk by invalid JSON; other chunks are intact."""

    chunk: Ordinal = 1
    """Number of the chunk, from 1."""


class MissingDoneRule(FaultRule, frozen=True, tag="missing-done"):
    """Omits the event that completes the stream."""


class EmptyRule(FaultRule, frozen=True, tag="empty"):
    """Status 200 with an empty body."""


class StallRule(FaultRule, frozen=True, tag="stall"):
    """Pauses after `after` tokens."""

    seconds: Seconds = 10.0
    """Length of the pause."""
    after: Count = 1
    """Number of tokens before the pause."""


class SlowFirstTokenRule(FaultRule, frozen=True, tag="slow-first-token"):
    """Delays the first token."""

    seconds: Seconds = 10.0
    """Length of the delay."""


@cache
def rule_kinds() -> dict[str, type[FaultRule]]:
    """Returns the kind of rule for each action."""
    return {str(kind.__struct_config__.tag): kind for kind in FaultRule.__subclasses__()}


def parse_fault_rules(text: str | None) -> tuple[FaultRule, ...]:
    """Parses a JSON list of rules, or one rule.

    Raises:
        ValueError: A rule is wrong; the message has its number, and the reason.
    """
    if not text:
        return ()
    items = _json(text)
    if isinstance(items, dict):
        items = [items]
    if not isinstance(items, list):
        raise ValueError("the rules must be a list")
    rules: list[FaultRule] = []
    for number, item in enumerate(items, 1):
        try:
            rules.append(read_fault_rule(item))
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from None
    return tuple(rules)


def parse_fault(text: str) -> FaultRule:
    """Parses the rule of a header: a JSON object, or a short form as ``disconnect; after=3``.

    Raises:
        ValueError: The rule is wrong; the message has the reason.
    """
    if text.lstrip().startswith("{"):
        return read_fault_rule(_json(text))
    action, *pairs = (part.strip() for part in text.split(";"))
    fields = {"action": action}
    for pair in filter(None, pairs):
        key, equals, value = pair.partition("=")
        if not equals or key.strip() in fields:
            raise ValueError(
                f"{pair[:40]!r} must have the form FIELD=VALUE, and no field may be repeated"
            )
        fields[key.strip()] = value.strip()
    return read_fault_rule(fields, strict=False)


def _json(text: str) -> object:
    from app.core.base.nested_json import decode_nested  # few rules are JSON

    try:
        return decode_nested(text)
    except UntrustedDataError:
        raise ValueError("not JSON") from None


def read_fault_rule(item: object, strict: bool = True) -> FaultRule:
    """Converts `item` to a rule; values may be texts unless `strict`.

    Raises:
        ValueError: The rule is wrong; the message has the reason.
    """
    if not isinstance(item, Mapping):
        raise ValueError(f"a rule must be an object, such as {EXAMPLE}")
    kinds = rule_kinds()
    action = item.get("action")
    if action is None:
        raise ValueError(f"a rule needs an action, as in {EXAMPLE}; actions are {', '.join(kinds)}")
    if not isinstance(action, str) or action not in kinds:
        hint = suggestion(str(action), names=kinds) or f"; actions are {', '.join(kinds)}"
        raise ValueError(f"unknown action {repr(action)[:40]}{hint}")
    try:
        rule = msgspec.convert(item, kinds[action], strict=strict)
        msgspec.json.encode(rule)
    except msgspec.ValidationError as error:
        raise ValueError(f"{action}: {error}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{action}: the text contains an unpaired surrogate") from None
    return rule
