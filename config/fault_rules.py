"""Scripted faults: which requests a rule strikes, and what then goes wrong (docs/faults.md).

A rule is an object with an `action` and the fields of that action; the other fields say whom it strikes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**53)]
Ordinal = Annotated[int, Meta(ge=1, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
PerMinute = Annotated[float, Meta(ge=1e-6, le=1e9)]
"""At least one in two years: longer waits are beyond what clients, and headers, can tell."""
Name = Annotated[str, Meta(max_length=64)]
Status = Annotated[int, Meta(ge=400, le=599)]

Family = Literal["chat", "completions", "responses", "messages", "generate", "grpc"]


class FaultRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="action"):
    """A rule: it applies to requests that fit all conditions given here."""

    name: Name = ""
    """Name of the rule in a verdict; its action, when empty."""
    model: str | None = None
    """The model that is asked for, exactly."""
    api: Family | None = None
    path: Annotated[str, Meta(max_length=256)] | None = None
    """With `*`, `?` and `[...]` as in file names."""
    headers: dict[str, str | None] = {}
    """Header to its exact value; null for any value."""
    nth: Ordinal | None = None
    """Only the nth of the requests that fit so far."""
    every: Ordinal | None = None
    """Only each k-th of them."""
    probability: Share = 1.0
    times: Ordinal | None = None
    """Most times that the rule applies."""

    @property
    def action(self) -> str:
        return str(self.__struct_config__.tag)


class ErrorRule(FaultRule, frozen=True, tag="error"):
    """An error instead of an answer."""

    status: Status = 500
    type: str | None = None
    message: str | None = None
    param: str | None = None
    retry_after: Annotated[int, Meta(ge=0, le=86400)] | None = None
    """Whole seconds."""


class RateLimitRule(FaultRule, frozen=True, tag="rate-limit"):
    """429 beyond a quota that fills up evenly; within it, an answer that tells the quota."""

    rate: PerMinute = 60.0
    """Requests per minute."""
    burst: PerMinute | None = None
    """Requests at once; those of a minute when not given."""
    token_rate: PerMinute | None = None
    """Tokens per minute, estimated from the size of the request."""
    token_burst: PerMinute | None = None


class DisconnectRule(FaultRule, frozen=True, tag="disconnect"):
    """The connection breaks after so many chunks; after 0, before the status line."""

    after: Count = 0


class TruncateRule(FaultRule, frozen=True, tag="truncate"):
    """The stream ends after so many chunks, as if that were all."""

    after: Count = 1


class TruncatedJsonRule(FaultRule, frozen=True, tag="truncated-json"):
    """The reply ends in the middle of this chunk, as if that were all."""

    chunk: Ordinal = 1


class MalformedChunkRule(FaultRule, frozen=True, tag="malformed-chunk"):
    """This chunk is no JSON; the others are in order."""

    chunk: Ordinal = 1


class MissingDoneRule(FaultRule, frozen=True, tag="missing-done"):
    """The stream lacks the event that says that it is complete."""


class EmptyRule(FaultRule, frozen=True, tag="empty"):
    """200 and nothing else."""


class StallRule(FaultRule, frozen=True, tag="stall"):
    """A pause after so many tokens."""

    seconds: Seconds = 10.0
    after: Count = 1


class SlowFirstTokenRule(FaultRule, frozen=True, tag="slow-first-token"):
    """A first token that comes so much later."""

    seconds: Seconds = 10.0


ACTIONS: dict[str, type[FaultRule]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        *(ErrorRule, RateLimitRule, DisconnectRule, TruncateRule, TruncatedJsonRule, MalformedChunkRule),
        *(MissingDoneRule, EmptyRule, StallRule, SlowFirstTokenRule),
    )
}


def parse_fault_rules(text: str | None) -> tuple[FaultRule, ...]:
    """The rules of a JSON list, or of one object. ValueError says which rule is wrong and why."""
    if not text:
        return ()
    try:
        listed: object = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    if isinstance(listed, dict):
        listed = [listed]
    if not isinstance(listed, list):
        raise ValueError("a list of rules is needed")
    return tuple(_numbered(number, item) for number, item in enumerate(listed, 1))


def parse_fault(text: str) -> FaultRule:
    """The one rule of a header: a JSON object, or in short ``disconnect; after=3``. ValueError: why not."""
    if text.lstrip().startswith("{"):
        try:
            return read_fault_rule(json.loads(text))
        except (json.JSONDecodeError, RecursionError):
            raise ValueError("it is not JSON") from None
    action, *pairs = (part.strip() for part in text.split(";"))
    fields = {"action": action}
    for pair in filter(None, pairs):
        key, equals, value = pair.partition("=")
        if not equals or key.strip() in fields:
            raise ValueError(f"{pair[:40]!r} is not a field and its value, each once")
        fields[key.strip()] = value.strip()
    return read_fault_rule(fields, strict=False)


def _numbered(number: int, item: object) -> FaultRule:
    try:
        return read_fault_rule(item)
    except ValueError as error:
        raise ValueError(f"rule {number}: {error}") from None


def read_fault_rule(item: object, strict: bool = True) -> FaultRule:
    """The rule that `item` describes; values may be texts unless `strict`. ValueError: why it is none."""
    if not isinstance(item, Mapping):
        raise ValueError("a rule is an object")
    action = item.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        from difflib import get_close_matches  # only needed for what is wrong

        near = get_close_matches(str(action), ACTIONS, 1)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(ACTIONS)}"
        raise ValueError(f"no action {repr(action)[:40]}{hint}")
    try:
        rule = msgspec.convert(item, ACTIONS[action], strict=strict)
        msgspec.json.encode(rule)
    except msgspec.ValidationError as error:
        raise ValueError(f"{action}: {error}") from None
    except UnicodeEncodeError:
        raise ValueError(f"{action}: it has half a character") from None
    return rule
