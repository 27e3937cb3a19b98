"""Reads scripts from files and documents. Errors are one line with file, rule and key."""

import re
from collections.abc import Mapping, Sequence
from typing import get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import fields

from app.core.protocol.common import UsageOverrides
from app.extensions.scripts.rules import (
    CONTENT_KEYS,
    COUNT_TOKENS,
    NUMBER_KEYS,
    PASS,
    Delays,
    Family,
    Finish,
    MessageIs,
    Nth,
    Range,
    Rule,
    RuleCall,
    Scope,
    Script,
    ScriptError,
    TextIs,
    Then,
    ToolResultIs,
    When,
    Which,
)
from config.declaration import ConfigError, suggestion
from config.yaml_file import parse_yaml

MAX_SCRIPT_BYTES = 2 << 20
PARTS: Mapping[str, type[msgspec.Struct]] = {
    "the script": Script,
    "a rule": Rule,
    "when": When,
    "when.message": MessageIs,
    "when.tool_result": ToolResultIs,
    "when.headers": TextIs,
    "when.turn": Range,
    "when.nth": Nth,
    "then": Then,
    "then.tool_calls": RuleCall,
    "then.usage": UsageOverrides,
    "then.delays": Delays,
}
"""Parts of a script, by their places."""
KEYS = {field.encode_name for part in PARTS.values() for field in fields(part)}
"""All keys of the language."""
CHOICES = {"api": Family, "which": Which, "per": Scope, "finish_reason": Finish}
API_OF_KEY = {"blocks": "messages", "input_tokens": COUNT_TOKENS}
"""The only API whose answers have a key of `then`."""
UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")
PATH_STEP = re.compile(r"[^\].\[]+|\.\.\.")
"""A step of a path in an error: `rules` and 1 in `$.rules[1]`; three dots stand for any member."""


def read_script(path: str) -> Script:
    """Reads the script in the file `path`.

    Raises:
        ScriptError: The file is missing or invalid.
    """
    try:
        document = parse_yaml(path, MAX_SCRIPT_BYTES)
    except ConfigError as error:
        raise ScriptError(str(error).replace("YAML file", "script", 1)) from None
    if not isinstance(document, dict):
        raise ScriptError(
            f"script {path} must be a mapping that contains rules, got {type(document).__name__}"
        )
    return convert_script(document, path)


def convert_script(document: Mapping[str, object], path: str) -> Script:
    """Converts a parsed document to a script.

    Raises:
        ScriptError: The document is invalid.
    """
    try:
        script = msgspec.convert(document, Script, str_keys=True)
    except msgspec.ValidationError as error:
        raise ScriptError(_explain(str(error), document, path)) from None
    for number, rule in enumerate(script.rules, 1):
        flaw = _flaw_of(rule.then) or _flaw_of_api(rule)
        if flaw:
            raise ScriptError(f"{rule_location(path, number, rule.name)}: then: {flaw}")
    return script


def rule_location(path: str, number: int, name: str = "") -> str:
    """Returns the words that name a rule in errors, logs and reports."""
    location = f"script {path}: rule {number}"
    if not name:
        return location
    return f"{location} ({name})"


def _flaw_of(outcome: str | Then) -> str:
    """Returns an error that msgspec's types cannot express; empty for a valid action."""
    if not isinstance(outcome, Then):
        if outcome == PASS:
            return ""
        return f"must be {PASS!r} or a mapping, got {outcome[:40]!r}"
    keys = [
        key
        for key in (*CONTENT_KEYS, *NUMBER_KEYS)
        if getattr(outcome, key) not in (None, UNSET, ())
    ]
    if outcome == Then():
        return f"is empty; it needs {', '.join((*CONTENT_KEYS, *NUMBER_KEYS))}, fault or {PASS}"
    if outcome.passes:
        return _flaw_of_pass(outcome, keys)
    if {"text", "json"} <= set(keys):
        return "text and json cannot be combined"
    if len(keys) > 1 and keys[-1] in ("blocks", *NUMBER_KEYS):
        return f"{keys[0]} and {keys[-1]} cannot be combined, because no request gets both"
    if not keys and not outcome.fault:
        return f"has no reply; add a text, or {PASS}: true"
    return ""


def _flaw_of_api(rule: Rule) -> str:
    """Returns an error for keys that only one API has, in a rule for other APIs."""
    for key, api in API_OF_KEY.items():
        if getattr(rule.then, key, None) is not None and rule.when.api not in (api, (api,)):
            return f"{key} needs when: {{api: {api}}}"
    return ""


def _flaw_of_pass(outcome: Then, keys: Sequence[str]) -> str:
    if not keys and outcome.finish_reason is None:
        return ""
    key = next(iter(keys), "finish_reason")
    return f"{PASS} leaves the reply to the reply mode, so {key} has no effect"


def _explain(message: str, document: Mapping[str, object], path: str) -> str:
    """Rewrites msgspec's message with the rule and key of the file."""
    problem, _, json_path = message.partition(" - at ")
    steps = PATH_STEP.findall(json_path.partition("$")[2].rstrip("`"))
    unknown = UNKNOWN_FIELD.search(problem)
    if unknown:
        problem = f"unknown key {unknown[1][:40]!r}{_hint(unknown[1])}"
    elif problem.startswith("Invalid enum") and steps and steps[-1] in CHOICES:
        words = get_args(CHOICES[steps[-1]])
        problem = f"must be one of {', '.join(words)}, {problem[8:]}"
    location = f"script {path}"
    if steps[:1] == ["rules"] and len(steps) > 1 and steps[1].isdigit():
        index = int(steps[1])
        location = rule_location(path, index + 1, _rule_name(document, index))
        steps = steps[2:]
    return ": ".join(filter(None, (location, ".".join(steps), problem)))


def _hint(key: str) -> str:
    """Returns the places of a key that belongs elsewhere, or a similar key."""
    if key not in KEYS:
        return suggestion(key, KEYS)
    places = [
        place
        for place, part in PARTS.items()
        if any(field.encode_name == key for field in fields(part))
    ]
    return f"; it belongs in {' or '.join(places)}"


def _rule_name(document: Mapping[str, object], index: int) -> str:
    rules = document.get("rules")
    rule = rules[index] if isinstance(rules, list) else None
    if not isinstance(rule, dict) or not isinstance(rule.get("name"), str):
        return ""
    name: str = rule["name"]
    return name[:64]
